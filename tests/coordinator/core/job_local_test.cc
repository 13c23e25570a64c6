// What an interrupted job takes from the disks of its daemons, and for what it waits: local
// checkpoints, copies at buddies, and what is not worth its way.
#include "tests/coordinator/core/job_recovery_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using JobLocalTest = JobRecoveryTest;

// What was heard of n1's disk last was older than what lay there when it was killed: the job went
// on from the stored checkpoint before it was back.
TEST_F(JobLocalTest, ADaemonThatKeepsLocalCheckpointsHasTimeToTellOfThem) {
  local_ = 1;
  LoseN1();
  EXPECT_THAT(Reason(), HasSubstr("a newer one may lie on the disk of name1, which has not told"));
  EXPECT_TRUE(jobs_.WaitsForKept(Job_(), At(32)));
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(33))) << "not for ever";
  Keeps(1, {10, 11});  // killed before it kept 12
  jobs_.LookAtKept(kJob);
  EXPECT_EQ(Job_().kept_step, 11);
  EXPECT_TRUE(jobs_.WaitsForKept(Job_(), At(33))) << "it is on its way";
  EXPECT_THAT(Reason(), HasSubstr("checkpoint 11 lies on the disks of its daemons"));
  jobs_.OnCheckpoint(kJob, 11, At(34));
  Beats("n1", 0, 35);
  jobs_.Tick(members_, At(35));
  EXPECT_THAT(Reason(),
              HasSubstr("of step 11 (the 1 step after it is lost): it goes on from there"));
}

// A buddy has it: nobody waits for the daemon that was lost.
TEST_F(JobLocalTest, TheCopyOfABuddyIsTakenAtOnce) {
  local_ = 1;
  LoseN1();
  KeptParts all;
  for (int stage : {0, 1}) {
    KeptPart& part = *all.add_parts();
    part.set_job_id(kJob);
    part.set_step(11);
    part.set_generation(1);
    part.set_stage(stage);
    part.set_stages(kStages);
  }
  KeptPart& own = *all.add_parts();  // of which the copy was under way
  own = all.parts(0);
  own.set_step(12);
  jobs_.OnKept("n0", all);
  const Commands asked = jobs_.Tick(members_, At(5));
  ASSERT_THAT(asked, SizeIs(kStages));
  for (int stage : {0, 1}) {
    EXPECT_EQ(asked[stage].node_id, "n0");
    EXPECT_EQ(asked[stage].message.put_kept().step(), 11);
    EXPECT_EQ(asked[stage].message.put_kept().stage(), stage);
  }
  EXPECT_EQ(KeptWords(Job_()),
            "the parts of checkpoint 11 lie on the disks of name0 and are on their way here: a "
            "resume goes on from it once it is whole");
  EXPECT_TRUE(jobs_.WaitsForKept(Job_(), At(34)));
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(35))) << "it should have been here long ago";
  jobs_.OnCheckpoint(kJob, 11, At(7));
  jobs_.Tick(members_, At(7));
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(7)));
}

// Gigabytes over a slow path for a few steps: the job waited for hours.
TEST_F(JobLocalTest, WhatTakesLongerToComeThanItsStepsIsMadeAgain) {
  local_ = 1;
  large_ = true;
  LoseN1();
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(5))) << "not for n1 to tell either";
  Keeps(1, {11, 12});
  EXPECT_THAT(jobs_.Tick(members_, At(5)), IsEmpty());
  EXPECT_EQ(Job_().kept_step, -1);
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(5)));
  Beats("n1", 0, 6);
  jobs_.Tick(members_, At(6));
  EXPECT_THAT(Reason(), HasSubstr("of step 10 (the 2 steps after it are lost)"));
}

TEST_F(JobLocalTest, WithNothingStoredWhatLiesOnDisksIsWorthAnyWait) {
  local_ = 1;
  large_ = true;
  Add();
  Start(1, 0, 0);
  Steps(0, 12, 1);
  Fails(3);
  for (int stage = 0; stage < kStages; ++stage) Keeps(stage, {11, 12});
  jobs_.LookAtKept(kJob);
  EXPECT_EQ(Job_().kept_step, 12);
  EXPECT_TRUE(jobs_.WaitsForKept(Job_(), At(3600)));
}

// A job that fails at each step that it makes again got on by one step each time, for ever.
TEST_F(JobLocalTest, WhatAnInterruptionBringsIsNoProgressWhereItIsOfTheFirstSteps) {
  local_ = 1;
  Add(true, 3);
  Start(1, 0, 0);
  Steps(0, 2, 1);
  Fails(2);
  jobs_.OnCheckpoint(kJob, 2, At(3));
  EXPECT_EQ(Job_().interruptions, 1);
  Start(2, 2, 4);
  Steps(2, 9, 5);
  Fails(6);
  EXPECT_EQ(Job_().interruptions, 2);
  jobs_.OnCheckpoint(kJob, 9, At(7));
  EXPECT_EQ(Job_().interruptions, 0) << "it got on";
}

// Nothing travels for a job that nobody may want any more, and nothing is lost.
TEST_F(JobLocalTest, OfOneThatWasStoppedAtOnceALocalCheckpointIsAskedForByAResumeAlone) {
  local_ = 1;
  Add();
  Start(1, 0, 0);
  Steps(0, 12, 1);
  ASSERT_TRUE(jobs_.Stop(kJob, true, At(2)).ok());
  for (int stage = 0; stage < kStages; ++stage) {
    Keeps(stage, {11, 12});
    Beats(absl::StrCat("n", stage), 0, 3);
  }
  EXPECT_THAT(jobs_.Tick(members_, At(4)), IsEmpty());
  EXPECT_EQ(Job_().kept_step, 12);
  EXPECT_THAT(Reason(), HasSubstr("checkpoint 12 lies on the disks of its daemons"));
  EXPECT_THAT(KeptWords(Job_()), HasSubstr(": a resume fetches them and goes on from it"));
  jobs_.WantKept(kJob);
  const Commands asked = jobs_.Tick(members_, At(5));
  ASSERT_THAT(asked, SizeIs(kStages));
  EXPECT_EQ(asked[0].message.put_kept().step(), 12);
}

// All steps since the last stored checkpoint were thrown away, though the disk had room again.
TEST_F(JobLocalTest, AFullDiskOfTheCoordinatorIsWaitedFor) {
  local_ = 1;
  LoseN1();
  Keeps(1, {10, 11});
  Beats("n1", 0, 5);
  ASSERT_THAT(jobs_.Tick(members_, At(5)), SizeIs(kStages));
  EXPECT_THAT(jobs_.Tick(members_, At(20)), IsEmpty()) << "they are on their way";
  const PartTrouble full{0, 0, "weights", "no space left on device"};
  EXPECT_TRUE(jobs_.OnCheckpointFailed(kJob, 1, 11, full, At(20)));
  EXPECT_FALSE(jobs_.OnCheckpointFailed(kJob, 1, 11, full, At(21))) << "once is enough";
  EXPECT_THAT(KeptWords(Job_()), HasSubstr("can't store them: no space left on device. Make room"));
  EXPECT_THAT(jobs_.Tick(members_, At(22)), SizeIs(kStages)) << "again, and soon";
  EXPECT_THAT(jobs_.Tick(members_, At(24)), IsEmpty());
  EXPECT_THAT(jobs_.Tick(members_, At(28)), SizeIs(kStages));
  EXPECT_TRUE(jobs_.WaitsForKept(Job_(), At(500)));
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(606))) << "not for ever";
  jobs_.OnCheckpoint(kJob, 11, At(30));
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(31)));
  EXPECT_EQ(Job_().kept_refused, "");
}

TEST_F(JobLocalTest, NobodyWaitsForADiskWithoutLocalCheckpoints) {
  LoseN1();
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(5)));
}

TEST_F(JobLocalTest, NobodyWaitsForADiskWhereTheOthersHoldNothingLater) {
  local_ = 1;
  LoseN1();
  Keeps(0, {9, 10});
  jobs_.Tick(members_, At(5));
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(5)));
}

}  // namespace
}  // namespace isthmus::coordinator
