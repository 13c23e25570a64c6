#include "coordinator/cli/view/chrome_trace.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/cli/view/json_out.h"
#include "proto/plan/groups.h"

namespace isthmus::cli {
namespace {

constexpr int kCompute = 0;  // thread; those of link l are 1 + 2 l (out) and 2 + 2 l (in)

std::string Lower(const std::string& name) {
  std::string text = absl::AsciiStrToLower(name);
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

bool OnLink(const Plan& plan, const TraceSpan& span) {
  const bool out = span.kind() == TraceSpan::ENCODE || span.kind() == TraceSpan::SEND;
  const bool in = span.kind() == TraceSpan::RECEIVE || span.kind() == TraceSpan::DECODE;
  return (out || in) && span.link() >= 0 && span.link() < plan.links_size();
}

int ThreadOf(const Plan& plan, const TraceSpan& span) {
  if (!OnLink(plan, span)) return kCompute;
  const bool out = span.kind() == TraceSpan::ENCODE || span.kind() == TraceSpan::SEND;
  return 2 * span.link() + (out ? 1 : 2);
}

std::string SpanName(const TraceSpan& span) {
  std::string name = Lower(TraceSpan::Kind_Name(span.kind()));
  const bool frame = span.kind() == TraceSpan::WAIT || span.kind() == TraceSpan::ENCODE ||
                     span.kind() == TraceSpan::SEND || span.kind() == TraceSpan::RECEIVE ||
                     span.kind() == TraceSpan::DECODE;
  if (frame) absl::StrAppend(&name, " ", Lower(FrameHeader::Kind_Name(span.frame())));
  if (span.micro() >= 0) absl::StrAppend(&name, " ", span.micro());
  return name;
}

std::string Micros(int64_t ns) {
  return absl::StrFormat("%d.%03d", ns / 1000, static_cast<int>(ns % 1000));
}

struct Interval {
  int64_t begin = 0, end = 0;
  bool Holds(const Interval& other) const { return begin <= other.begin && other.end <= end; }
};

Interval IntervalOf(const TraceSpan& span) {
  const auto begin = static_cast<int64_t>(span.begin_ns());
  return {begin, begin + std::max<int64_t>(span.duration_ns(), 0)};
}

int64_t Covered(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  int64_t sum = 0, until = INT64_MIN;
  for (const Interval& i : intervals) {
    sum += std::max<int64_t>(0, i.end - std::max(until, i.begin));
    until = std::max(until, i.end);
  }
  return sum;
}

class Events {
 public:
  void Add(const std::string& event) { absl::StrAppend(&text_, text_.empty() ? "" : ",\n", event); }
  void Name(int pid, std::optional<int> tid, const std::string& name) {
    const char* what = tid.has_value() ? "thread" : "process";
    const std::string at =
        absl::StrCat("{\"ph\":\"M\",\"pid\":", pid,
                     tid.has_value() ? absl::StrCat(",\"tid\":", *tid) : "", ",\"name\":\"", what);
    Add(absl::StrCat(at, "_name\",\"args\":{\"name\":", JsonString(name), "}}"));
    Add(absl::StrCat(at, "_sort_index\",\"args\":{\"sort_index\":", tid.value_or(pid), "}}"));
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

void AddRank(const Plan& plan, int rank, Events* events) {
  events->Name(rank, std::nullopt, RankName(plan, rank));
  events->Name(rank, kCompute, "compute");
  for (int l = 0; l < plan.links_size(); ++l) {
    const LinkPlan& link = plan.links(l);
    if (link.lower() != rank && link.upper() != rank) continue;
    const int peer = link.lower() == rank ? link.upper() : link.lower();
    events->Name(rank, 2 * l + 1, absl::StrCat("to ", RankName(plan, peer)));
    events->Name(rank, 2 * l + 2, absl::StrCat("from ", RankName(plan, peer)));
  }
}

// Which frame of all: its link, way, kind, step, micro-batch and group.
using FrameKey = std::tuple<int, int, int, int64_t, int, int>;

std::optional<FrameKey> KeyOf(const Plan& plan, const StepTrace& trace, const TraceSpan& span) {
  const bool send = span.kind() == TraceSpan::SEND;
  if ((!send && span.kind() != TraceSpan::RECEIVE) || !OnLink(plan, span)) return std::nullopt;
  const LinkPlan& link = plan.links(span.link());
  const int peer = link.lower() == trace.rank() ? link.upper() : link.lower();
  return FrameKey{span.link(), send ? trace.rank() : peer, span.frame(), trace.step(), span.micro(),
                  span.group()};
}

std::string Percent(double share) { return absl::StrFormat("%.0f %%", 100 * share); }

}  // namespace

std::string RankName(const Plan& plan, int rank) {
  return absl::StrCat(StageWords(plan, rank), " on ", plan.ranks(rank).node_name());
}

std::vector<int64_t> ClockOffsets(const TraceJobReply& reply) {
  std::map<int, int64_t> first;  // by rank, its own clock
  for (const StepTrace& trace : reply.traces()) {
    for (const TraceSpan& span : trace.spans()) {
      const auto begin = static_cast<int64_t>(span.begin_ns());
      const auto [at, is_new] = first.try_emplace(trace.rank(), begin);
      if (!is_new) at->second = std::min(at->second, begin);
    }
  }
  std::vector<int64_t> offsets(reply.plan().ranks_size());
  std::optional<int64_t> earliest;
  const auto known = [&](int r) { return r < reply.clocks_size() && reply.clocks(r).known(); };
  for (const auto& [rank, begin] : first) {
    if (!known(rank)) continue;
    offsets[rank] = reply.clocks(rank).offset_ns();
    earliest = std::min(earliest.value_or(INT64_MAX), begin + offsets[rank]);
  }
  for (const auto& [rank, begin] : first) {
    if (!known(rank)) offsets[rank] = earliest.value_or(0) - begin;
  }
  return offsets;
}

std::string ChromeTrace(const TraceJobReply& reply) {
  const Plan& plan = reply.plan();
  const std::vector<int64_t> offsets = ClockOffsets(reply);
  int64_t start = INT64_MAX;
  std::map<FrameKey, int> ends;  // how many ends of a frame are there
  for (const StepTrace& trace : reply.traces()) {
    for (const TraceSpan& span : trace.spans()) {
      start = std::min(start, static_cast<int64_t>(span.begin_ns()) + offsets[trace.rank()]);
      if (const auto key = KeyOf(plan, trace, span); key.has_value()) ++ends[*key];
    }
  }
  std::map<FrameKey, size_t> numbers;
  Events events;
  for (int rank = 0; rank < plan.ranks_size(); ++rank) AddRank(plan, rank, &events);
  for (const StepTrace& trace : reply.traces()) {
    for (const TraceSpan& span : trace.spans()) {
      const std::string ts =
          Micros(static_cast<int64_t>(span.begin_ns()) + offsets[trace.rank()] - start);
      const std::string at =
          absl::StrCat("\"pid\":", trace.rank(), ",\"tid\":", ThreadOf(plan, span), ",\"ts\":", ts);
      events.Add(absl::StrCat(
          "{\"ph\":\"X\",", at, ",\"dur\":", Micros(std::max<int64_t>(span.duration_ns(), 0)),
          ",\"name\":", JsonString(SpanName(span)),
          ",\"cat\":", JsonString(Lower(TraceSpan::Kind_Name(span.kind()))), ",\"args\":{\"step\":",
          trace.step() + 1, span.micro() >= 0 ? absl::StrCat(",\"micro\":", span.micro()) : "",
          span.group() >= 0 && span.group() < plan.groups_size()
              ? absl::StrCat(",\"group\":", JsonString(plan.groups(span.group()).id()))
              : "",
          span.bytes() > 0 ? absl::StrCat(",\"bytes\":", span.bytes()) : "", "}}"));
      const auto key = KeyOf(plan, trace, span);
      if (!key.has_value() || ends[*key] != 2) continue;
      const size_t number = numbers.try_emplace(*key, numbers.size() + 1).first->second;
      events.Add(absl::StrCat("{\"ph\":\"", span.kind() == TraceSpan::SEND ? "s" : "f\",\"bp\":\"e",
                              "\",", at, ",\"id\":", number,
                              ",\"name\":\"frame\",\"cat\":\"frame\"}"));
    }
  }
  return absl::StrCat(
      "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"job\":", JsonString(plan.job_id()),
      ",\"generation\":", plan.generation(), "},\"traceEvents\":[\n", events.Take(), "\n]}\n");
}

std::vector<RankShares> SharesOf(const TraceJobReply& reply) {
  std::vector<RankShares> all(reply.plan().ranks_size());
  for (int rank = 0; rank < reply.plan().ranks_size(); ++rank) {
    RankShares& shares = all[rank];
    std::map<TraceSpan::Kind, std::vector<Interval>> spans;
    Interval whole{INT64_MAX, INT64_MIN};
    for (const StepTrace& trace : reply.traces()) {
      if (trace.rank() != rank) continue;
      ++shares.steps;
      shares.dropped += trace.dropped();
      for (const TraceSpan& span : trace.spans()) {
        const Interval i = IntervalOf(span);
        spans[span.kind()].push_back(i);
        if (ThreadOf(reply.plan(), span) != kCompute) continue;
        whole = {std::min(whole.begin, i.begin), std::max(whole.end, i.end)};
      }
    }
    if (shares.steps == 0 || whole.end <= whole.begin) continue;
    const double total = static_cast<double>(whole.end - whole.begin);
    shares.step_s = 1e-9 * total / static_cast<double>(shares.steps);
    const auto share = [&](TraceSpan::Kind kind) {
      return static_cast<double>(Covered(spans[kind])) / total;
    };
    // Of the compute thread: what lies in a validation pass is of that, a wait in a reduction is a
    // wait.
    const auto apart = [&](TraceSpan::Kind kind, TraceSpan::Kind holder) {
      std::vector<Interval> in;
      for (const Interval& i : spans[kind]) {
        const auto& of = spans[holder];
        if (std::any_of(of.begin(), of.end(), [&](const Interval& h) { return h.Holds(i); }))
          in.push_back(i);
      }
      return static_cast<double>(Covered(std::move(in))) / total;
    };
    const auto outside = [&](TraceSpan::Kind kind) {
      return share(kind) - apart(kind, TraceSpan::EVALUATE);
    };
    shares.forward = outside(TraceSpan::FORWARD);
    shares.backward = share(TraceSpan::BACKWARD);
    shares.optimiser = share(TraceSpan::OPTIMISER);
    shares.wait = outside(TraceSpan::WAIT);
    shares.reduce = share(TraceSpan::REDUCE) - apart(TraceSpan::WAIT, TraceSpan::REDUCE);
    shares.evaluate = share(TraceSpan::EVALUATE);
    shares.checkpoint = share(TraceSpan::CHECKPOINT);
    shares.other =
        std::max(0.0, 1 - shares.forward - shares.backward - shares.optimiser - shares.wait -
                          shares.reduce - shares.evaluate - shares.checkpoint);
    shares.encode = share(TraceSpan::ENCODE);
    shares.send = share(TraceSpan::SEND);
    shares.receive = share(TraceSpan::RECEIVE);
    shares.decode = share(TraceSpan::DECODE);
  }
  return all;
}

std::string TraceSummary(const TraceJobReply& reply) {
  std::string out;
  const std::vector<RankShares> all = SharesOf(reply);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const RankShares& s = all[rank];
    if (s.steps == 0) continue;
    std::vector<std::string> parts;
    const auto add = [&](const char* what, double share) {
      if (share >= 0.005) parts.push_back(absl::StrCat(what, " ", Percent(share)));
    };
    add("reductions", s.reduce);
    add("validation", s.evaluate);
    add("checkpoint", s.checkpoint);
    add("other", s.other);
    absl::StrAppend(&out, RankName(reply.plan(), static_cast<int>(rank)), ": ",
                    absl::StrFormat("%.1f ms a step: compute ", 1e3 * s.step_s),
                    Percent(s.forward + s.backward + s.optimiser), " (forward ", Percent(s.forward),
                    ", backward ", Percent(s.backward), ", optimiser ", Percent(s.optimiser),
                    "), waiting ", Percent(s.wait), parts.empty() ? "" : ", ",
                    absl::StrJoin(parts, ", "), "; beside it: encoding ", Percent(s.encode),
                    ", sending ", Percent(s.send), ", receiving ", Percent(s.receive),
                    ", decoding ", Percent(s.decode), "\n");
  }
  return out;
}

std::string TraceSummaryJson(const TraceJobReply& reply, const std::string& file) {
  const Plan& plan = reply.plan();
  std::set<int64_t> steps;
  for (const StepTrace& trace : reply.traces()) steps.insert(trace.step() + 1);
  std::vector<std::string> ranks;
  const std::vector<RankShares> all = SharesOf(reply);
  for (int r = 0; r < plan.ranks_size(); ++r) {
    const RankShares& s = all[r];
    const bool known = r < reply.clocks_size() && reply.clocks(r).known();
    std::string one = absl::StrCat(
        "    {\n      \"node\": ", JsonString(plan.ranks(r).node_name()),
        ",\n      \"stage\": ", plan.ranks(r).stage(),
        ",\n      \"replica\": ", plan.ranks(r).replica(), ",\n      \"steps\": ", s.steps,
        ",\n      \"dropped_spans\": ", s.dropped, ",\n      \"clock_error_s\": ",
        known ? JsonNumber(1e-9 * static_cast<double>(reply.clocks(r).error_ns())) : "null",
        ",\n      \"step_s\": ", JsonNumber(s.step_s));
    for (const auto& [name, share] :
         std::vector<std::pair<const char*, double>>{{"forward", s.forward},
                                                     {"backward", s.backward},
                                                     {"optimiser", s.optimiser},
                                                     {"reduce", s.reduce},
                                                     {"wait", s.wait},
                                                     {"evaluate", s.evaluate},
                                                     {"checkpoint", s.checkpoint},
                                                     {"other", s.other},
                                                     {"encode", s.encode},
                                                     {"send", s.send},
                                                     {"receive", s.receive},
                                                     {"decode", s.decode}}) {
      absl::StrAppend(&one, ",\n      \"", name, "_share\": ", JsonNumber(share));
    }
    ranks.push_back(absl::StrCat(one, "\n    }"));
  }
  return absl::StrCat("{\n  \"job_id\": ", JsonString(plan.job_id()),
                      ",\n  \"generation\": ", plan.generation(), ",\n  \"steps\": [",
                      absl::StrJoin(steps, ", "), "],\n  \"file\": ", JsonString(file),
                      ",\n  \"ranks\": [\n", absl::StrJoin(ranks, ",\n"), "\n  ]\n}\n");
}

std::vector<std::string> TraceFaults(const TraceJobReply& reply, int steps) {
  std::vector<std::string> faults;
  const std::vector<RankShares> all = SharesOf(reply);
  int64_t most = 0;
  for (const RankShares& s : all) most = std::max(most, s.steps);
  for (size_t r = 0; r < all.size(); ++r) {
    const std::string name = RankName(reply.plan(), static_cast<int>(r));
    if (all[r].steps == 0) {
      faults.push_back(absl::StrCat(name,
                                    " told of no step: its daemon may be of a version that does "
                                    "not trace; the trace is of the others"));
      continue;
    }
    if (all[r].dropped > 0) {
      faults.push_back(absl::StrCat(name, " left out ", all[r].dropped,
                                    " spans: more than a trace of a step holds"));
    }
    const int rank = static_cast<int>(r);
    if (rank >= reply.clocks_size() || !reply.clocks(rank).known()) {
      faults.push_back(absl::StrCat(
          name, ": its clock is not known; its first span is put where the others' first one is"));
    }
  }
  if (most < steps) {
    faults.push_back(absl::StrCat(
        most, " of ", steps,
        " steps: the job ended before the others, a connection broke, or they are more than a "
        "trace holds"));
  }
  return faults;
}

}  // namespace isthmus::cli
