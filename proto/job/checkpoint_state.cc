#include "proto/job/checkpoint_state.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "nlohmann/json.hpp"
#include "proto/job/job_defaults.h"

namespace isthmus {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  const bool good = google::protobuf::util::MessageToJsonString(message, &text, options).ok();
  ISTHMUS_CHECK(good);  // it fails for what proto3 does not take in: text that is not UTF-8
  return Json::parse(text);
}

// Fields of a later version are passed over.
template <typename Message>
std::optional<Message> FromJson(const Json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_object()) return std::nullopt;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  Message message;
  if (!google::protobuf::util::JsonStringToMessage(it->dump(), &message, options).ok())
    return std::nullopt;
  return message;
}

int64_t Number(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
}

uint64_t Fingerprint(const Json& json, const char* key) {
  const auto corpus = json.find("corpus");
  if (corpus == json.end() || !corpus->is_object()) return 0;
  const auto it = corpus->find(key);
  uint64_t value = 0;
  if (it == corpus->end() || !it->is_string() ||
      !absl::SimpleHexAtoi(it->get<std::string>(), &value))
    return 0;
  return value;
}

}  // namespace

std::string FingerprintText(uint64_t fingerprint) { return absl::StrFormat("%016x", fingerprint); }

std::string CheckpointStateJson(const CheckpointState& state) {
  Json json;
  json["step"] = state.step;
  json["skipped_steps"] = state.skipped_steps;
  json["stage"] = state.stage;
  json["stages"] = state.stages;
  json["generation"] = state.generation;
  if (state.position.has_value()) {
    const DataPosition& at = *state.position;
    json["position"] = {{"epoch", at.epoch()}, {"offset", at.offset()}, {"samples", at.samples()}};
    if (state.job.has_value()) json["tokens"] = at.samples() * state.job->model().context();
  }
  Json corpus = Json::object();
  if (state.corpus_fingerprint != 0)
    corpus["fingerprint"] = FingerprintText(state.corpus_fingerprint);
  if (state.corpus_contents != 0) corpus["contents"] = FingerprintText(state.corpus_contents);
  if (!corpus.empty()) json["corpus"] = corpus;
  if (state.job.has_value()) json["job"] = ToJson(*state.job);
  return json.dump(2) + "\n";
}

absl::StatusOr<CheckpointState> ParseCheckpointState(absl::string_view text, int64_t step) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("state.json of checkpoint ", step, " ", what,
                     ": resume from another checkpoint (--step), or put a copy of this one back"));
  };
  const Json json = Json::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer())
    return wrong("is not a state file");
  CheckpointState state;
  state.step = json["step"].get<int64_t>();
  if (state.step != step) return wrong(absl::StrCat("is of step ", state.step));
  state.skipped_steps = Number(json, "skipped_steps");
  if (state.skipped_steps < 0 || state.skipped_steps > step)
    return wrong(absl::StrCat("has skipped_steps ", state.skipped_steps));
  state.generation = static_cast<uint64_t>(std::max<int64_t>(0, Number(json, "generation")));
  state.stage = static_cast<int>(Number(json, "stage"));
  state.stages = static_cast<int>(Number(json, "stages"));
  state.job = FromJson<JobSpec>(json, "job");
  if (state.job.has_value()) FillDefaults(&*state.job);  // of fields that came later
  state.position = FromJson<DataPosition>(json, "position");
  if (state.position.has_value() && (state.position->epoch() < 0 || state.position->offset() < 0 ||
                                     state.position->samples() < state.position->offset()))
    return wrong("has a position in the data that can't be");
  state.corpus_fingerprint = Fingerprint(json, "fingerprint");
  state.corpus_contents = Fingerprint(json, "contents");
  return state;
}

}  // namespace isthmus
