#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/cli/view/render.h"
#include "coordinator/cli/view/views.h"

namespace isthmus::cli {

std::string CheckpointsView(const ListCheckpointsReply& reply, bool verified) {
  if (reply.checkpoints().empty()) {
    return "No checkpoint is stored with the coordinator yet. What daemons keep on their disks is "
           "in isthmus status.\n";
  }
  Table table({">STEP", ">SIZE", "STATE"});
  const bool phased =
      std::any_of(reply.checkpoints().begin(), reply.checkpoints().end(),
                  [](const CheckpointInfo& info) { return info.phase() > 0 || info.phase_end(); });
  for (const CheckpointInfo& info : reply.checkpoints()) {
    if (!info.kept_by().empty()) {
      table.AddRow({absl::StrCat(info.step()), "-",
                    absl::StrCat("not stored here yet; its parts lie on the disks of ",
                                 absl::StrJoin(info.kept_by(), ", "))});
      continue;
    }
    table.AddRow({absl::StrCat(info.step()), FormatBytes(static_cast<double>(info.bytes())),
                  absl::StrCat(!info.damage().empty() ? info.damage()
                               : verified             ? "sound"
                                                      : "whole (--verify reads it)",
                               info.phase_end() ? absl::StrCat(", end of phase ", info.phase() + 1)
                               : phased         ? absl::StrCat(", phase ", info.phase() + 1)
                                                : "",
                               info.left_behind() ? "; left behind: the job went on from an older "
                                                    "one, a resume takes it with --step alone"
                                                  : "")});
  }
  return absl::StrCat(table.Render(),
                      "\nGo on from one: isthmus submit JOB.yaml --resume --step STEP\n");
}

}  // namespace isthmus::cli
