// The families of models (model.family), and what of a sample differs between them. A sample of a
// GPT-2 is a piece of a text, with a loss at each of its positions. One of an MLP, a classifier, is
// a row of `model.inputs` values and a class: it has one position, so that boundaries carry samples
// x 1 x hidden, and what counts tokens counts samples. Thread: pure functions.
#ifndef ISTHMUS_PROTO_MODEL_FAMILY_H_
#define ISTHMUS_PROTO_MODEL_FAMILY_H_

#include <cstdint>

#include "proto/data/data_files.h"
#include "proto/job.pb.h"

namespace isthmus {

inline constexpr char kGpt2[] = "gpt2", kMlp[] = "mlp";

inline bool IsMlp(const ModelSpec& model) { return model.family() == kMlp; }

// A value of a row is a byte: an MLP's model.vocabulary, and the most classes.
constexpr int kRowValues = 256;

// Ids of a sample that the first stage takes.
inline int64_t InputsOf(const ModelSpec& model) {
  return IsMlp(model) ? model.inputs() : model.context();
}

// What a target is below.
inline int64_t TargetsBelow(const ModelSpec& model) {
  return IsMlp(model) ? model.classes() : model.vocabulary();
}

inline SampleShape SampleShapeOf(const ModelSpec& model) {
  return IsMlp(model) ? SampleShape::OfRows(model.inputs()) : SampleShape::OfText(model.context());
}

// What a hidden layer of an MLP takes: the inputs, or the units of the layer before it.
inline int64_t WidthInto(const ModelSpec& model, int layer) {
  return layer == 0 ? model.inputs() : model.hidden();
}

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_MODEL_FAMILY_H_
