// The certificate of a daemon that joined is renewed while it runs; its key, authority and name
// stay. What is dialled and served with from now on takes the newest one. Thread: any; reads files.
#ifndef ISTHMUS_BASE_RPC_NEWEST_FOLDER_H_
#define ISTHMUS_BASE_RPC_NEWEST_FOLDER_H_

#include <string>

#include "base/tls/folder.h"

namespace isthmus::rpc {

// Whether what lies in the folder came by joining, and is renewed in place.
bool IsJoined(const std::string& tls_dir);

// As it lies there now, if it is joined; else, and where that can't be used or names another, the
// one that was loaded.
tls::Folder NewestFolder(const tls::Folder& loaded);

}  // namespace isthmus::rpc

#endif  // ISTHMUS_BASE_RPC_NEWEST_FOLDER_H_
