#include "base/tls/fetch_authority.h"

#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "base/tls/join_token.h"
#include "base/tls/openssl.h"
#include "base/tls/socket.h"
#include "gmock/gmock.h"
#include "tests/base/tls/tls_dir.h"

namespace isthmus::tls {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

// Shakes hands with one client, as `folder` says it is; `shows_ca`: with the authority's
// certificate behind its own. Without a folder it says nothing and closes.
class OneServer {
 public:
  explicit OneServer(const std::string& folder, bool shows_ca = true) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    EXPECT_EQ(::listen(fd_, 1), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, folder, shows_ca] { Serve(folder, shows_ca); });
  }
  ~OneServer() {
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    ::close(fd_);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  void Serve(const std::string& folder, bool shows_ca) const {
    const NoPipeSignal no_signal;
    const int client = ::accept(fd_, nullptr, nullptr);
    if (client < 0) return;
    if (!folder.empty()) {
      const std::unique_ptr<SSL_CTX, SslFree> context(SSL_CTX_new(TLS_server_method()));
      SSL_CTX_use_certificate_file(context.get(), (folder + "/cert.pem").c_str(), SSL_FILETYPE_PEM);
      SSL_CTX_use_PrivateKey_file(context.get(), (folder + "/key.pem").c_str(), SSL_FILETYPE_PEM);
      std::ifstream in(folder + "/ca.pem");
      std::stringstream text;
      text << in.rdbuf();
      auto ca = ParseCertificate(text.str(), "ca.pem");
      if (shows_ca) SSL_CTX_add1_chain_cert(context.get(), ca->get());
      const std::unique_ptr<SSL, SslFree> ssl(SSL_new(context.get()));
      SSL_set_fd(ssl.get(), client);
      SSL_accept(ssl.get());
      ERR_clear_error();
    }
    ::close(client);
  }

  int fd_ = -1;
  int port_ = 0;
  std::thread thread_;
};

class FetchAuthorityTest : public TlsDirTest {
 protected:
  void SetUp() override { ASSERT_TRUE(Authority::Init(ca_, now_).ok()); }
  std::string Hash() { return *AuthorityHash(Read(ca_ + "/ca.pem"), "ca.pem"); }
};

TEST_F(FetchAuthorityTest, TakesTheCertificateOfThatHash) {
  const OneServer server(Issue("c", Role::kCoordinator).folder);
  const auto pem = FetchAuthority(server.address(), kAnyCoordinator, Hash(), kPatience);
  ASSERT_TRUE(pem.ok()) << pem.status();
  EXPECT_EQ(*pem, Read(ca_ + "/ca.pem"));
}

TEST_F(FetchAuthorityTest, TakesNoOther) {
  std::string other = Hash();
  other[0] = static_cast<char>(other[0] ^ 1);
  const std::string folder = Issue("c", Role::kCoordinator).folder;
  {
    const OneServer server(folder);
    const auto pem = FetchAuthority(server.address(), kAnyCoordinator, other, kPatience);
    EXPECT_TRUE(absl::IsUnauthenticated(pem.status())) << pem.status();
    EXPECT_THAT(std::string(pem.status().message()), HasSubstr("Nothing was told to it"));
  }
  const OneServer server(folder, false);  // as the port that wants certificates
  EXPECT_TRUE(absl::IsUnauthenticated(
      FetchAuthority(server.address(), kAnyCoordinator, Hash(), kPatience).status()));
}

TEST_F(FetchAuthorityTest, TellsWhereNobodySpeaksTls) {
  std::string gone;
  {
    const OneServer server("");
    gone = server.address();
    const auto pem = FetchAuthority(gone, kAnyCoordinator, Hash(), kPatience);
    EXPECT_TRUE(absl::IsUnavailable(pem.status())) << pem.status();
    EXPECT_THAT(std::string(pem.status().message()), HasSubstr("does not speak TLS 1.3"));
  }
  const auto pem = FetchAuthority(gone, kAnyCoordinator, Hash(), kPatience);
  EXPECT_TRUE(absl::IsUnavailable(pem.status())) << pem.status();
  EXPECT_THAT(std::string(pem.status().message()), HasSubstr("nobody answers at 127.0.0.1:"));
}

}  // namespace
}  // namespace isthmus::tls
