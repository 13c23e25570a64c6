#include "coordinator/cli/testnet/testnet_flags.h"

#include <CLI/CLI.hpp>

#include "base/machine_check.h"
#include "base/number_flag.h"
#include "coordinator/cli/shell/help_text.h"

namespace isthmus::cli {

void AddTestnetFlags(CLI::App* testnet, TestnetOptions* options) {
  Whole(testnet->add_option("--nodes", options->nodes,
                            "daemons (with --links: the first ones of the table)"),
        1, 200);
  testnet->add_option("--links", options->links, "link table: a preset or a CSV file")
      ->type_name("PRESET|FILE");
  testnet->add_option("--rate", options->rate, "of every link, such as 20Mbit")->type_name("RATE");
  testnet->add_option("--delay", options->delay, "one way, such as 25ms")->type_name("DELAY");
  testnet->add_option("--jitter", options->jitter, "such as 1ms")->type_name("JITTER");
  testnet->add_option("--loss", options->loss, "share of packets, such as 0.1%")->type_name("LOSS");
  testnet->add_option("--uplink", options->uplink, "of a daemon, for all that it sends")
      ->type_name("RATE");
  testnet->add_option("--downlink", options->downlink, "of a daemon, for all that it receives")
      ->type_name("RATE");
  Whole(testnet->add_option("--mtu", options->mtu, "largest packet; 9000 costs the least CPU"), 576,
        9000)
      ->capture_default_str();
  Whole(testnet->add_option("--seed", options->seed, "of losses and jitter"), 0)
      ->capture_default_str();
  testnet->add_option("--data-dir", options->data_dir, "folder of the training data")
      ->type_name("DIR")
      ->capture_default_str();
  testnet
      ->add_option("--run-dir", options->run_dir, "logs and state go there (else a temporary one)")
      ->type_name("DIR");
  testnet->add_option("--summary", options->summary_file, "write the final figures there")
      ->type_name("FILE");
  Whole(testnet->add_option("--threads", options->threads,
                            "compute threads a daemon, at most this machine's processors"),
        1, Processors())
      ->capture_default_str();
  Real(testnet->add_option(
           "--ready-timeout", options->ready_timeout_s,
           "seconds until all daemons have measured their links; 0: by their number"),
       0, 86400)
      ->capture_default_str();
  testnet->add_flag("--http", options->http, "serve the metrics pages on the emulated network");
  testnet->add_flag("--keep", options->keep,
                    "leave everything running after the job, until Ctrl-C");
  testnet->footer(kTestnetFooter);
}

}  // namespace isthmus::cli
