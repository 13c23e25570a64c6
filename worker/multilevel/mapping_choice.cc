#include "worker/multilevel/mapping_choice.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace isthmus::multilevel {
namespace {

// A factor and the words of who asked for it.
struct Wish {
  int64_t factor;
  std::string words;
};

// The factor between the sizes of the source and of the result.
absl::StatusOr<Wish> SizeWish(Operator kind, const char* flag, const char* what, int64_t source,
                              int64_t wanted) {
  const bool down = kind == Operator::kCoalesce;
  const int64_t large = down ? source : wanted, small = down ? wanted : source;
  const std::string words = absl::StrCat(flag, " ", wanted);
  if (large < small)
    return absl::InvalidArgumentError(
        absl::StrCat(words, ": the model has ", source, " ", what, ", and ", OperatorName(kind),
                     down ? " makes no more of them" : " makes no fewer of them"));
  if (large % small != 0)
    return absl::InvalidArgumentError(
        absl::StrCat(words, ": ", small, " is no divisor of ", large, " ", what));
  return Wish{large / small, absl::StrCat(words, " (factor ", large / small, ")")};
}

// What all wishes agree on; 1 without any.
absl::StatusOr<int64_t> Agreed(const std::vector<Wish>& wishes, const std::string& why) {
  for (const Wish& wish : wishes) {
    if (wish.factor != wishes.front().factor)
      return absl::InvalidArgumentError(
          absl::StrCat(wishes.front().words, " and ", wish.words, " contradict each other", why));
  }
  return wishes.empty() ? 1 : wishes.front().factor;
}

absl::Status CheckLike(const Shape& source, const Asked& asked) {
  if (asked.width_factor + asked.depth_factor + asked.hidden + asked.heads + asked.layers > 0)
    return absl::InvalidArgumentError(
        "--like names width and depth; leave out the flags that name them as well");
  if (asked.like->vocabulary != source.vocabulary || asked.like->context != source.context)
    return absl::InvalidArgumentError(absl::StrCat(
        "--like: that model has a vocabulary of ", asked.like->vocabulary, " and a context of ",
        asked.like->context, ", this one ", source.vocabulary, " and ", source.context));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Mapping> ChooseMapping(Operator kind, const Shape& source, const Asked& asked_in,
                                      const std::optional<Mapping>& recorded) {
  Asked asked = asked_in;
  Mapping mapping = recorded.value_or(Mapping());
  mapping.width = asked.width.value_or(mapping.width);
  mapping.depth = asked.depth.value_or(mapping.depth);
  mapping.tied = asked.tied.value_or(mapping.tied);
  if (asked.like.has_value()) {
    RETURN_IF_ERROR(CheckLike(source, asked));
    asked.hidden = asked.like->hidden;
    asked.heads = asked.like->heads;
    asked.layers = asked.like->layers;
  }
  std::vector<Wish> width, depth;
  if (asked.width_factor > 0)
    width.push_back({asked.width_factor, absl::StrCat("--width-factor ", asked.width_factor)});
  if (asked.depth_factor > 0)
    depth.push_back({asked.depth_factor, absl::StrCat("--depth-factor ", asked.depth_factor)});
  const struct {
    const char *flag, *what;
    int64_t source, wanted;
    std::vector<Wish>* wishes;
  } sizes[] = {{"--hidden", "channels", source.hidden, asked.hidden, &width},
               {"--heads", "heads", source.heads, asked.heads, &width},
               {"--layers", "layers", source.layers, asked.layers, &depth}};
  for (const auto& size : sizes) {
    if (size.wanted == 0) continue;
    ASSIGN_OR_RETURN(Wish wish, SizeWish(kind, size.flag, size.what, size.source, size.wanted));
    size.wishes->push_back(std::move(wish));
  }
  if (width.empty() && depth.empty()) return mapping;
  ASSIGN_OR_RETURN(mapping.width_factor, Agreed(width, absl::StrCat("; the size of a head stays ",
                                                                    source.hidden / source.heads)));
  ASSIGN_OR_RETURN(mapping.depth_factor, Agreed(depth, ""));
  return mapping;
}

}  // namespace isthmus::multilevel
