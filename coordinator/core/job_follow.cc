// The part of JobTable that lets running jobs follow their links (recovery.follow): what was seen
// of these, whether a job may take a new plan now, and the move: its generation ends in good order,
// and it goes on by itself (job_recovery.cc) with the plan that is made then. A move is no
// interruption, unless something fails in it or the coordinator restarts meanwhile.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/format.h"
#include "coordinator/core/jobs.h"

namespace isthmus::coordinator {
namespace {

constexpr int64_t kFewSteps = 3;     // of a generation: it is not known yet what they take
constexpr size_t kNewsInWords = 4;   // links in one sentence
constexpr double kAsMeasured = 0.9;  // of the measured rate, and more: "as measured"

const LinkPlan* LinkOf(const Plan& plan, const LinkNews& news) {
  for (const LinkPlan& link : plan.links()) {
    const std::string &lower = plan.ranks(link.lower()).node_id(),
                      &upper = plan.ranks(link.upper()).node_id();
    if ((lower == news.from_id && upper == news.to_id) ||
        (upper == news.from_id && lower == news.to_id))
      return &link;
  }
  return nullptr;
}

bool Follows(const Job& job, const LinkNews& news) {
  return job.status.state() == JOB_RUNNING && job.spec.recovery().follow() &&
         (LinkOf(job.plan, news) != nullptr ||
          job.left_links.count({news.from_id, news.to_id}) > 0);
}

// "link b0 (a -> b) carries 9.6 Mbit/s, where 98.0 Mbit/s were measured".
std::string WordsOf(const Plan& plan, const LinkNews& news) {
  const LinkPlan* link = LinkOf(plan, news);
  const std::string ends = absl::StrCat(news.from_name, " -> ", news.to_name);
  const std::string carries =
      absl::StrCat(link == nullptr ? absl::StrCat("the link ", ends)
                                   : absl::StrCat("link ", link->id(), " (", ends, ")"),
                   " carries ", FormatRate(news.now_bits_per_s));
  if (news.now_bits_per_s < news.before_bits_per_s)
    return absl::StrCat(carries, ", where ",
                        FormatRate(std::max(news.measured_bits_per_s, news.before_bits_per_s)),
                        " were measured");
  return absl::StrCat(
      carries, " after ", FormatRate(news.before_bits_per_s),
      news.now_bits_per_s >= kAsMeasured * news.measured_bits_per_s ? ", as measured" : "");
}

}  // namespace

double RecentStepSeconds(const Job& job) {
  std::vector<double> seconds;
  for (auto it = job.recent.rbegin();
       it != job.recent.rend() && static_cast<int>(seconds.size()) < kRateWindow; ++it) {
    if (it->record.generation() != job.status.generation()) break;
    seconds.push_back(it->record.step_s());
  }
  if (seconds.empty()) return 0;
  const auto middle = seconds.begin() + static_cast<int64_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

std::set<MeasuredLinks::Pair> JobTable::FollowedLinks() const {
  std::set<MeasuredLinks::Pair> pairs;
  for (const auto& [id, job] : jobs_) {
    if (job.status.state() != JOB_RUNNING || !job.spec.recovery().follow() || job.validates >= 0)
      continue;
    for (const LinkPlan& link : job.plan.links()) {
      const std::string &lower = job.plan.ranks(link.lower()).node_id(),
                        &upper = job.plan.ranks(link.upper()).node_id();
      if (lower == upper) continue;
      pairs.insert({lower, upper});
      pairs.insert({upper, lower});
    }
    for (const auto& [pair, news] : job.left_links) pairs.insert(pair);
  }
  return pairs;
}

void JobTable::OnLinkNews(const LinkNews& news) {
  for (auto& [id, job] : jobs_) {
    if (!Follows(job, news)) continue;
    const auto known = std::find_if(job.news.begin(), job.news.end(), [&](const LinkNews& n) {
      return n.from_id == news.from_id && n.to_id == news.to_id;
    });
    if (known != job.news.end()) {
      known->now_bits_per_s = news.now_bits_per_s;
    } else {
      job.news.push_back(news);
    }
    job.status.set_following(NewsWords(job));
    Touch(&job);
  }
}

std::string JobTable::NewsWords(const Job& job) {
  std::vector<std::string> words;
  for (const LinkNews& news : job.news) {
    if (words.size() == kNewsInWords) break;
    words.push_back(WordsOf(job.plan, news));
  }
  const size_t more = job.news.size() - words.size();
  return absl::StrCat(absl::StrJoin(words, "; "),
                      more > 0 ? absl::StrCat("; and ", more, " more") : "");
}

bool JobTable::MayMove(const Job& job, absl::Time now) const {
  if (job.status.state() != JOB_RUNNING || !job.spec.recovery().follow() || job.news.empty() ||
      now < job.follow_after || job.validates >= 0 || !job.checkpoint_trouble.empty() ||
      job.status.has_cause() || job.status.step() < job.plan.start_step() + kFewSteps ||
      job.status.step() >= EndOf(job))
    return false;
  return std::none_of(job.stages.begin(), job.stages.end(), [](const StageState& s) {
    return s.ended || s.idle || s.gone_since.has_value() || s.confirm_by.has_value();
  });
}

Commands JobTable::Followed(const std::string& id, const std::string& words, bool moves,
                            absl::Time now) {
  Job* job = Mutable(id);
  if (job == nullptr || job->status.state() != JOB_RUNNING) return {};
  const std::string all = absl::StrCat(NewsWords(*job), ": ", words);
  job->status.set_following(all.substr(0, kMaxReasonBytes / 2));
  for (const LinkNews& news : job->news) {
    const bool slower = news.now_bits_per_s < news.before_bits_per_s;
    if (moves && slower) job->left_links[{news.from_id, news.to_id}] = news;
    if (!slower) job->left_links.erase({news.from_id, news.to_id});
  }
  job->news.clear();
  job->follow_after = std::max(job->follow_after, now + options_.follow_pause);
  Touch(job);
  if (!moves) return {};
  job->status.set_moves(job->status.moves() + 1);
  Commands out = Leave(job, 0, job->status.following(), job->status.following(), now);
  job->moving = true;
  job->left_at = now;
  return out;
}

// The first step under the new plan is made: what the move took, but for the step before it and
// this one.
void JobTable::EndMove(Job* job, absl::Time now) const {
  if (!job->left_at.has_value() || job->status.state() != JOB_RUNNING) return;
  const auto& last = job->recent.rbegin();
  absl::Duration steps = absl::Seconds(last->record.step_s());
  if (job->recent.size() > 1) steps += absl::Seconds(std::next(last)->record.step_s());
  job->move_took = std::max(now - *job->left_at - steps, absl::Milliseconds(1));
  job->follow_after = now + std::max(options_.follow_pause, options_.follow_rest * job->move_took);
  job->left_at.reset();
}

}  // namespace isthmus::coordinator
