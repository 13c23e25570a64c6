// An authority and identities out of it, for tests that talk TLS. Thread: one owner.
#ifndef ISTHMUS_TESTS_TLS_CLUSTER_H_
#define ISTHMUS_TESTS_TLS_CLUSTER_H_

#include <fstream>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "base/rpc/tls_identity.h"
#include "base/tls/authority.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus {

// The calls of the services in a .proto file, as HTTP/2 has them.
inline std::set<std::string> CallsIn(const std::string& file) {
  std::set<std::string> calls;
  std::ifstream in(file);
  EXPECT_TRUE(in.good()) << file;
  const std::regex service(R"(^service (\w+).*)"), rpc(R"(^ *rpc (\w+).*)");
  std::string name;
  std::smatch match;
  for (std::string line; std::getline(in, line);) {
    if (std::regex_match(line, match, service)) name = match[1];
    if (std::regex_match(line, match, rpc)) calls.insert("/isthmus." + name + "/" + match.str(1));
  }
  return calls;
}

class TlsCluster {
 public:
  TlsCluster() { EXPECT_TRUE(tls::Authority::Init(dir(), tls::Today()).ok()); }

  // The folder of a coordinator lies where Revoke writes the list anew.
  std::shared_ptr<rpc::TlsIdentity> Issue(const std::string& name, tls::Role role) {
    const std::string own = scratch_.path() + "/" + std::to_string(++issued_);
    const auto issued = tls::Authority::Open(dir())->Issue(
        {{name, role}, 1, role == tls::Role::kCoordinator ? "" : own}, tls::Today());
    EXPECT_TRUE(issued.ok()) << issued.status();
    auto identity = rpc::TlsIdentity::Load(issued->folder, {role});
    EXPECT_TRUE(identity.ok()) << identity.status();
    return *std::move(identity);
  }
  // The list of revoked certificates with all of that name.
  std::string Revoke(const std::string& name) {
    EXPECT_TRUE(tls::Authority::Open(dir())->Revoke(name, tls::Today()).ok());
    std::ifstream in(dir() + "/revoked.pem");
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  std::string dir() const { return scratch_.path() + "/ca"; }

 private:
  const TempDirectory scratch_;
  int issued_ = 0;
};

}  // namespace isthmus

#endif  // ISTHMUS_TESTS_TLS_CLUSTER_H_
