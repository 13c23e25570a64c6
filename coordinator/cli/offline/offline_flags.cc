#include "coordinator/cli/offline/offline_flags.h"

#include <CLI/CLI.hpp>

#include "base/number_flag.h"

namespace isthmus::cli {
namespace {

constexpr char kFooter[] =
    "\nNothing is started. Refuses what can't run, and says what is missing.\n\nWith --topology "
    "neither coordinator nor daemon is asked: the hosts are those of a link table, as `isthmus\n"
    "testnet --links` takes it, and what a faster daemon, a faster link or one daemon more would "
    "buy is said too.\n\nWith --compare the plan stands beside those that others would make: an "
    "equal split, the "
    "best of a genetic\nsearch for the least communication, the best of 1000 drawn at random, the "
    "planner's without compression.\nIt takes seconds.\n\nExamples:\n  isthmus plan job.yaml\n  "
    "isthmus plan job.yaml --resume\n  "
    "isthmus plan job.yaml --topology regions --gflops 200 --memory 16GiB\n"
    "  isthmus plan job.yaml --topology regions --compare";

}  // namespace

void AddOfflineFlags(CLI::App* plan, OfflineOptions* options) {
  CLI::Option* topology =
      plan->add_option("--topology", options->links,
                       "plan for the hosts of a link table: a preset or a CSV file")
          ->type_name("PRESET|FILE");
  Whole(plan->add_option("--nodes", options->nodes,
                         "with --topology: the first hosts of the table (a table of `*` alone "
                         "names none)"),
        1, 250)
      ->needs(topology);
  plan->add_option("--hosts", options->hosts,
                   "with --topology: CSV file with the header host,gflops,memory and a row a host")
      ->type_name("FILE")
      ->needs(topology);
  Real(plan->add_option("--gflops", options->gflops,
                        "with --topology: what a host without a row computes, as `isthmus nodes` "
                        "shows it"),
       1e-3, kMostGflops)
      ->capture_default_str()
      ->needs(topology);
  plan->add_option("--memory", options->memory,
                   "with --topology: what a daemon on a host without a row may use")
      ->type_name("SIZE")
      ->capture_default_str()
      ->needs(topology);
  plan->footer(kFooter);
}

}  // namespace isthmus::cli
