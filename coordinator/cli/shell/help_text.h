// The longer texts below the helps of commands. Thread: constants.
#ifndef ISTHMUS_COORDINATOR_CLI_SHELL_HELP_TEXT_H_
#define ISTHMUS_COORDINATOR_CLI_SHELL_HELP_TEXT_H_

namespace isthmus::cli {

inline constexpr char kMainFooter[] = R"(
First steps:
  isthmus testnet --nodes 4 --rate 20Mbit --delay 20ms deploy/jobs/quickstart.yaml
                                             rehearse on this machine
  isthmus --coordinator host-a:7070 nodes    which daemons joined, and the links between them
  isthmus job-template > job.yaml            a job to edit; `isthmus help job` explains every field
  isthmus plan job.yaml                      who would hold what, with which codecs, and why
  isthmus submit job.yaml --watch            train
  isthmus export my-first-job ./model        a directory that `transformers` can load

`isthmus COMMAND --help` has examples. With --json a command prints the messages of
proto/control.proto: snake_case names, every field present, all numbers as JSON numbers.

)";

inline constexpr char kSubmitFooter[] = R"(
Examples:
  isthmus submit job.yaml --watch            progress bar, loss, tokens/s, bytes on the wire
  isthmus submit job.yaml --watch --summary s.json
                                             the final figures also as JSON
  isthmus submit job.yaml --resume           from the newest checkpoint of the job of that name
  isthmus submit job.yaml --resume --step 200
                                             from an older one
  isthmus submit job.yaml --wait             queue it until enough daemons are there
  isthmus submit job.yaml --watch --json     progress on stderr, the final figures on stdout

--resume prints what differs from the run that wrote the checkpoint; what makes another training of
it (rate, batch, data, seed, local steps ...) is refused without --accept-changes.
`isthmus plan job.yaml --resume` shows it beforehand.

A job with model.init_from reads a GPT-2 (config.json, model.safetensors) from that directory,
relative to the job file, and uploads it as the start of the training. Ctrl-C ends the watching,
not the job.)";

inline constexpr char kLogsFooter[] = R"(
Steps count from 1, as `status` and `watch` count: so many are committed after it. TOKENS/S is of
that step alone. With --json a line a record (JSON lines).

Example:
  isthmus logs my-first-job -f --json | jq '[.step, .loss]')";

inline constexpr char kStopFooter[] = R"(
Returns when the job has ended: `isthmus rm` and `isthmus submit --resume` may follow at once.
Ctrl-C ends the waiting, and the job goes on stopping. Exit code 6: steps are lost that no
checkpoint holds; 7: not ended within --timeout.

Go on later: isthmus submit JOB.yaml --resume)";

inline constexpr char kDrainFooter[] = R"(
The job that it works for ends its step, writes a checkpoint, and goes on without it (with
recovery.automatic, the default). No job is planned on it until --undo, also after a restart of the
coordinator.

Example, before a reboot of home-pc:
  isthmus drain home-pc)";

inline constexpr char kTraceFooter[] = R"(
Every pass, wait, coding and frame of each rank, on one time axis: the daemons' clocks are read
against the coordinator's. Open the file at https://ui.perfetto.dev or in chrome://tracing. Steps
that are not traced cost nothing. Exit code 1: the file is written, and something is missing in it.

Examples:
  isthmus trace my-first-job
  isthmus trace my-first-job --steps 3 --output steps.json)";

inline constexpr char kTestnetFooter[] = R"(
Starts an emulated wide-area network (isthmus-wan), a coordinator and daemons as processes on it,
submits the job, watches it and takes everything down. Needs root and /dev/net/tun. The
coordinator's links are unlimited unless the table has a node `hub`.

Examples:
  isthmus testnet --nodes 4 --rate 20Mbit --delay 20ms --loss 0.1% job.yaml
  isthmus testnet --links regions --nodes 3 job.yaml     a preset (isthmus-wan presets lists them)
  isthmus testnet --links regions --nodes 3 job.yaml --set strategy.stages=3
                                                         all three train, also where one is faster
  isthmus testnet --links my-links.csv job.yaml --json   every node of the table; figures as JSON
  isthmus testnet --nodes 2 --rate 5Mbit --delay 20ms job.yaml --keep --http
                                                         look around afterwards)";

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_SHELL_HELP_TEXT_H_
