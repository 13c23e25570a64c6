// When replicas with local steps agree on the weights: on all of them after each
// strategy.local_steps steps (DiLoCo, arXiv 2311.08105), or on one fragment of strided layers after
// the other, each at a step of its own in a round (streaming DiLoCo, arXiv 2501.18512). What a
// fragment learnt may then cross while training goes on: it is offered after one step, added up a
// few later, applied after strategy.fragment_delay of them. One agreement is over before the next
// one begins, so frames of a link have one order.
//
// Where all replicas must hold the same weights (a validation pass, a checkpoint, a stop, the end)
// they agree on all of them at once, at the end of a round; a fragment that would arrive later is
// not offered before.
//
// Replicas that train subnetworks (deal.h) agree at the end of each round on what they share; the
// whole model comes together where it is validated or stored, or the job ends.
// Thread: pure functions.
#ifndef ISTHMUS_PROTO_PLAN_AGREEMENTS_H_
#define ISTHMUS_PROTO_PLAN_AGREEMENTS_H_

#include <cstdint>

#include "proto/plan.pb.h"
#include "proto/plan/simulation.h"

namespace isthmus {

// Several replicas that make steps by themselves and then agree (strategy.local_steps).
bool MakesLocalSteps(const Plan& plan);
// The fragment that a layer belongs to, of strategy.fragments. The tied embedding's is number 0.
int FragmentOf(const JobSpec& job, int layer);
// Fragments have agreements of their own.
bool Streams(const Plan& plan);
// Of the next agreement a decision says what it is of: all, or a fragment; the whole model, or what
// subnetworks share.
bool AgreementsDiffer(const Plan& plan);

// With local steps: a round ends after `step`, after each strategy.local_steps of them and after
// the last one of the job.
bool RoundEndsAfter(const Plan& plan, int64_t step);
// A validation pass, or a checkpoint by the interval alone, is due after `step`: with local steps
// at the first end of a round.
bool EvalAfter(const Plan& plan, int64_t step);
bool CheckpointAfter(const Plan& plan, int64_t step);

struct Agreement {
  int fragment = -1;                            // -1: of all at once
  int64_t offer = -1, reduce = -1, apply = -1;  // after these steps
  bool merged = true;  // false: of subnetworks, whose model does not come together

  bool of_all() const { return fragment < 0; }
  // After it the model can be validated and stored.
  bool settles() const { return of_all() && merged; }
  // Is the group's part of the weights agreed on?
  bool Covers(const GroupPlan& group) const { return of_all() || group.part() == fragment; }
  // What of RankPlan.agree is done after `step`.
  bool Has(const Plan& plan, const Action& action, int64_t step) const;
};

// The first one that begins after step `from` or later. `all`: something waits for one of all.
// Without local steps there is none: its steps are -1.
Agreement NextAgreement(const Plan& plan, int64_t from, bool all);

// A rank's agreements of two rounds and of the last step, one after the other: for the check.
ActionList AgreementsOfRounds(const Plan& plan, int rank);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_AGREEMENTS_H_
