// Judges the values of isthmusd's flags before anything is opened. Thread: any; pure but for a look
// at --data-dir.
#ifndef ISTHMUS_DAEMON_FLAGS_H_
#define ISTHMUS_DAEMON_FLAGS_H_

#include <string>

#include "absl/status/status.h"
#include "daemon/daemon.h"

namespace isthmus::daemon {

// The two flags that are amounts of bytes, as given; "" where left out.
struct ByteFlags {
  std::string memory;
  std::string disk;
};

// Puts `bytes` into `options`. InvalidArgument: a flag has a value that can't be used; the message
// names flag, value and what is possible.
absl::Status ApplyByteFlags(const ByteFlags& bytes, DaemonOptions* options);

// "20Mbit": what --uplink says, 500 kbit/s to 100 Gbit/s (below, copies of checkpoints would wait
// so long for their turn that they break off); nothing where it is empty. As ApplyByteFlags.
absl::Status ApplyUplink(const std::string& text, DaemonOptions* options);

// All but what lies on this host's disk.
absl::Status CheckFlags(const DaemonOptions& options);

// Reads --tls-dir, if there is one; the daemon is called what its certificate says. As
// tls::ReadFolder; InvalidArgument: --name is another.
absl::Status ApplyTlsDir(DaemonOptions* options);

// That --data-dir is a directory.
absl::Status CheckDataDir(const std::string& path);

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_FLAGS_H_
