#include "coordinator/cli/tls/audit_command.h"

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/security_service.grpc.pb.h"
#include "tests/cli/app_fixture.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

class AuditCommandTest : public testing::Test, public Security::Service {
 protected:
  AuditCommandTest() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~AuditCommandTest() override { server_->Shutdown(); }

  grpc::Status Audit(grpc::ServerContext*, const AuditRequest* request,
                     AuditReply* reply) override {
    asked_ = request->last();
    *reply = audit_;
    return grpc::Status::OK;
  }
  Result Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "audit");
    arguments.insert(arguments.end(), {"--coordinator", absl::StrCat("127.0.0.1:", port_)});
    return RunCommand(std::move(arguments));
  }

  AuditReply audit_;
  int asked_ = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(AuditCommandTest, TellsWhoChangedWhat) {
  EXPECT_THAT(Run({}).out, HasSubstr("Nothing was changed yet"));
  AuditEntry* entry = audit_.add_entries();
  entry->set_who("ada");
  entry->set_role("operator");
  entry->set_peer("ipv4:10.0.0.9:51234");
  entry->set_call("Jobs.Stop");
  entry->set_what("bible");
  entry->set_outcome("ok");
  audit_.add_entries()->set_call("Jobs.Drain");
  const Result result = Run({"--last", "7"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(asked_, 7);
  EXPECT_THAT(result.out, HasSubstr("ada (operator)  ipv4:10.0.0.9:51234  Jobs.Stop   bible  ok"));
  EXPECT_THAT(result.out, HasSubstr("anybody")) << "over plain text";
  const auto json = nlohmann::json::parse(Run({"--json"}).out);
  EXPECT_EQ(json["entries"][0]["who"], "ada");
}

}  // namespace
}  // namespace isthmus::cli
