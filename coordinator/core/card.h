// The GPU of a daemon, as NodeInfo.device names it: "cuda:0 GPU-2f1c...", the device and the UUID
// that the driver gives the card, which is the same in every process and container of its host.
// Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CORE_CARD_H_
#define ISTHMUS_COORDINATOR_CORE_CARD_H_

#include <string>

namespace isthmus::coordinator {

// "GPU-2f1c..."; empty: a CPU, or a daemon that does not say.
inline std::string CardOf(const std::string& device) {
  const size_t space = device.find(' ');
  return space == std::string::npos ? "" : device.substr(space + 1);
}

// "cuda:0".
inline std::string DeviceName(const std::string& device) {
  return device.substr(0, device.find(' '));
}

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_CORE_CARD_H_
