#include "proto/model/stage_shapes.h"

#include "gtest/gtest.h"
#include "proto/model/model_cost.h"

namespace isthmus {
namespace {

ModelSpec Model() {
  ModelSpec model;
  model.set_layers(4);
  model.set_hidden(16);
  model.set_heads(2);
  model.set_context(8);
  model.set_vocabulary(50);
  return model;
}

TEST(StageShapes, HaveTheElementsOfTheStage) {
  const ModelSpec model = Model();
  EXPECT_EQ(ElementsOf(StageShapes(model, 0, 4)), StageCost(model, 0, 4, 1).parameters);
  EXPECT_EQ(ElementsOf(StageShapes(model, 1, 3)), StageCost(model, 1, 3, 1).parameters);
  for (const auto& [first, end] : {std::pair{0, 2}, {2, 4}})  // the tied embedding is elsewhere
    EXPECT_EQ(ElementsOf(StageShapes(model, first, end)),
              StageCost(model, first, end, 1).parameters - 50 * 16);
}

TEST(StageShapes, AHeadOfItsOwnIsTheLastOne) {
  ModelSpec model = Model();
  model.set_tied(false);
  for (const auto& [first, end] : {std::pair{0, 4}, {0, 2}, {1, 3}, {2, 4}})
    EXPECT_EQ(ElementsOf(StageShapes(model, first, end)),
              StageCost(model, first, end, 1).parameters);
  EXPECT_EQ(ParameterCount(model), ParameterCount(Model()) + 50 * 16);
  EXPECT_EQ(StageShapes(model, 0, 2)[0].positions, 50);
  EXPECT_EQ(StageShapes(model, 2, 4).back().positions, 50);
  EXPECT_EQ(StageShapes(model, 2, 4)[0].positions, 1) << "no embedding there";
}

TEST(StageShapes, MatricesAndVectorsInTheEnginesOrder) {
  const std::vector<TensorDims> shapes = StageShapes(Model(), 3, 4);
  ASSERT_EQ(shapes.size(), 14u);
  EXPECT_EQ(shapes[0].positions, 1);
  EXPECT_EQ(shapes[2].positions, 16);  // c_attn
  EXPECT_EQ(shapes[2].hidden, 48);
  EXPECT_EQ(shapes[10].positions, 64);  // the MLP's projection
  EXPECT_EQ(shapes[10].hidden, 16);
  EXPECT_EQ(StageShapes(Model(), 0, 4)[0].positions, 50);
  EXPECT_EQ(StageShapes(Model(), 0, 2)[0].positions, 8) << "positions: tokens are tied";
}

}  // namespace
}  // namespace isthmus
