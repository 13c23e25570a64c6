#include "base/rpc/newest_folder.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/tls/request.h"

namespace isthmus::rpc {

bool IsJoined(const std::string& tls_dir) {
  return ::access(absl::StrCat(tls_dir, "/", tls::kJoinedFile).c_str(), F_OK) == 0;
}

tls::Folder NewestFolder(const tls::Folder& loaded) {
  if (!IsJoined(loaded.path)) return loaded;
  const tls::Identity& mine = loaded.certificate.who;
  absl::StatusOr<tls::Folder> newest = tls::ReadFolder(loaded.path, {mine.role}, tls::Today());
  const bool same = newest.ok() && newest->certificate.who.name == mine.name &&
                    newest->key_pem == loaded.key_pem && newest->ca_pem == loaded.ca_pem;
  return same ? *std::move(newest) : loaded;
}

}  // namespace isthmus::rpc
