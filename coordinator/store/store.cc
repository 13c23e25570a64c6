#include "coordinator/store/store.h"

#include <sqlite3.h>

#include <cerrno>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/utf8.h"
#include "proto/valid_text.h"

namespace isthmus::coordinator {
namespace {

constexpr int kBusyMs = 5000;

constexpr char kSchema[] = R"(
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
  id TEXT PRIMARY KEY, number INTEGER NOT NULL, waits INTEGER NOT NULL,
  spec BLOB NOT NULL, status BLOB NOT NULL, plan BLOB) WITHOUT ROWID;
CREATE TABLE records (
  job_id TEXT NOT NULL, step INTEGER NOT NULL, data BLOB NOT NULL,
  PRIMARY KEY (job_id, step)) WITHOUT ROWID;
CREATE TABLE nodes (id TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE links (
  from_id TEXT NOT NULL, to_id TEXT NOT NULL, data BLOB NOT NULL,
  PRIMARY KEY (from_id, to_id)) WITHOUT ROWID;
)";

// Of later programs of this version: an earlier one does without.
constexpr char kAdded[] = R"(
CREATE TABLE IF NOT EXISTS removed_jobs (id TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS job_notes (
  job_id TEXT PRIMARY KEY, failed_checkpoint INTEGER NOT NULL, because BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS job_reasons (
  job_id TEXT PRIMARY KEY, hash INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS left_nodes (id TEXT PRIMARY KEY, why BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS drained_nodes (id TEXT PRIMARY KEY) WITHOUT ROWID;
)";

// In job_reasons: of the reason that job_notes.because is the first part of. An earlier program may
// write another reason and leave the notes as they are, which are of no use then.
int64_t ReasonHash(const JobStatus& status) {
  return static_cast<int64_t>(Hash64(ToUtf8(status.reason())));
}

// In jobs.waits. Earlier programs know 0 and kWaits, and take all else for it.
constexpr int64_t kWaits = 1, kStepAsked = 2, kNoChanges = 4;

constexpr char kMoveAway[] =
    ". Move it away, with its -wal and -shm, to start without it: jobs and records are lost, "
    "checkpoints are files beside it and stay";

// "state database DIR/coordinator.db: "
std::string Named(sqlite3* db) {
  const char* file = db != nullptr ? sqlite3_db_filename(db, "main") : nullptr;
  return absl::StrCat("state database", file != nullptr ? " " : "", file != nullptr ? file : "",
                      ": ");
}

// `doing` is what failed, in words: "storing the records of job x". Users read it: no SQL.
absl::Status FromSqlite(sqlite3* db, int code, absl::string_view doing) {
  const std::string named = absl::StrCat(Named(db), doing, ": ");
  const bool io = code == SQLITE_IOERR || code == SQLITE_CANTOPEN;
  if (code == SQLITE_FULL || (io && db != nullptr && sqlite3_system_errno(db) == ENOSPC))
    return absl::ResourceExhaustedError(
        absl::StrCat(named, "the disk is full. Free some space there, then try again"));
  const std::string text =
      absl::StrCat(named, db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code));
  if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB)
    return absl::DataLossError(absl::StrCat(text, kMoveAway));
  if (code == SQLITE_READONLY || io)
    return absl::InternalError(
        absl::StrCat(text, ". Is the disk sound, mounted, and writable for this user?"));
  return absl::InternalError(text);
}

// A prepared statement, bound and run once. `doing` names it in an error.
class Statement {
 public:
  Statement(sqlite3* db, std::string doing, const char* sql) : db_(db), doing_(std::move(doing)) {
    code_ = sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Text(const std::string& v) {
    if (code_ == SQLITE_OK)
      code_ = sqlite3_bind_text(statement_, ++bound_, v.data(), static_cast<int>(v.size()),
                                SQLITE_TRANSIENT);
    return *this;
  }
  Statement& Int(int64_t v) {
    if (code_ == SQLITE_OK) code_ = sqlite3_bind_int64(statement_, ++bound_, v);
    return *this;
  }
  // With valid text: another one could not be read again.
  Statement& Message(const google::protobuf::Message& m) {
    const std::unique_ptr<google::protobuf::Message> valid(m.New());
    valid->CopyFrom(m);
    MakeTextValid(valid.get());
    const std::string v = valid->SerializeAsString();
    if (code_ == SQLITE_OK)
      code_ = sqlite3_bind_blob(statement_, ++bound_, v.data(), static_cast<int>(v.size()),
                                SQLITE_TRANSIENT);
    return *this;
  }

  // True: there is a row.
  absl::StatusOr<bool> Step() {
    if (code_ == SQLITE_OK) {
      const int code = sqlite3_step(statement_);
      if (code == SQLITE_ROW) return true;
      if (code == SQLITE_DONE) return false;
      code_ = code;
    }
    return FromSqlite(db_, code_, doing_);
  }
  absl::Status Run() { return Step().status(); }

  int64_t ColumnInt(int i) const { return sqlite3_column_int64(statement_, i); }
  std::string ColumnBytes(int i) const {
    const void* data = sqlite3_column_blob(statement_, i);
    return data == nullptr
               ? std::string()
               : std::string(static_cast<const char*>(data), sqlite3_column_bytes(statement_, i));
  }
  bool IsNull(int i) const { return sqlite3_column_type(statement_, i) == SQLITE_NULL; }

 private:
  sqlite3* const db_;
  const std::string doing_;
  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_OK;
  int bound_ = 0;
};

absl::Status Execute(sqlite3* db, absl::string_view doing, const char* sql) {
  const int code = sqlite3_exec(db, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : FromSqlite(db, code, doing);
}

struct Closer {
  void operator()(sqlite3* db) const { sqlite3_close(db); }
};
using Database = std::unique_ptr<sqlite3, Closer>;

absl::StatusOr<Database> Connect(const std::string& path) {
  sqlite3* raw = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &raw,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Database db(raw);
  if (code != SQLITE_OK) return FromSqlite(raw, code, absl::StrCat("opening ", path));
  sqlite3_busy_timeout(raw, kBusyMs);
  RETURN_IF_ERROR(Execute(raw, "opening it", "PRAGMA journal_mode=WAL"));
  RETURN_IF_ERROR(Execute(raw, "opening it", "PRAGMA synchronous=FULL"));
  return db;
}

absl::Status MakeSchema(sqlite3* db) {
  Statement version(db, "reading its version", "PRAGMA user_version");
  ASSIGN_OR_RETURN(const bool row, version.Step());
  const int64_t found = row ? version.ColumnInt(0) : 0;
  if (found == kSchemaVersion) return absl::OkStatus();
  if (found > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "state database: its schema is version ", found, ", this program knows ", kSchemaVersion,
        ": run the newer program, or give this one another --state-dir"));
  }
  constexpr char kDoing[] = "making its tables";
  RETURN_IF_ERROR(Execute(db, kDoing, "BEGIN IMMEDIATE"));
  absl::Status made = Execute(db, kDoing, kSchema);
  if (made.ok())
    made = Execute(db, kDoing, absl::StrCat("PRAGMA user_version=", kSchemaVersion).c_str());
  if (made.ok()) return Execute(db, kDoing, "COMMIT");
  Execute(db, kDoing, "ROLLBACK").IgnoreError();
  return made;
}

class SqliteStore : public Store {
 public:
  SqliteStore(Database writer, Database reader)
      : writer_(std::move(writer)), reader_(std::move(reader)) {}

  absl::StatusOr<uint64_t> NextGeneration() override { return Next("generation"); }
  absl::StatusOr<uint64_t> NextJobNumber() override { return Next("job"); }

  absl::Status StartAfter(uint64_t generation, uint64_t job_number) override {
    RETURN_IF_ERROR(Raise("generation", generation));
    return Raise("job", job_number);
  }

  absl::Status Write(const StoreBatch& batch) override {
    if (batch.empty()) return absl::OkStatus();
    MutexLock lock(&write_mutex_);
    constexpr char kDoing[] = "storing what changed";
    RETURN_IF_ERROR(Execute(writer_.get(), kDoing, "BEGIN IMMEDIATE"));
    absl::Status written = WriteAll(batch);
    if (written.ok()) written = Execute(writer_.get(), kDoing, "COMMIT");
    if (!written.ok()) Execute(writer_.get(), kDoing, "ROLLBACK").IgnoreError();
    return written;
  }

  absl::StatusOr<StoreContents> Load() override {
    StoreContents out;
    MutexLock lock(&read_mutex_);
    Statement jobs(reader_.get(), "reading the jobs",
                   "SELECT id, number, waits, spec, status, plan, failed_checkpoint, because, hash "
                   "FROM jobs LEFT JOIN job_notes ON job_notes.job_id = id "
                   "LEFT JOIN job_reasons ON job_reasons.job_id = id ORDER BY number");
    for (;;) {
      ASSIGN_OR_RETURN(const bool row, jobs.Step());
      if (!row) break;
      StoredJob job;
      job.id = jobs.ColumnBytes(0);
      job.number = jobs.ColumnInt(1);
      const int64_t waits = jobs.ColumnInt(2);
      job.wait_for_nodes = waits != 0;
      job.step_asked = (waits & kStepAsked) != 0;
      job.accepts_changes = (waits & kNoChanges) == 0;
      if (!jobs.IsNull(6)) {
        job.failed_checkpoint = jobs.ColumnInt(6);
        job.because = jobs.ColumnBytes(7);
      }
      bool whole = job.spec.ParseFromString(jobs.ColumnBytes(3)) &&
                   job.status.ParseFromString(jobs.ColumnBytes(4));
      if (!jobs.IsNull(5)) whole = job.plan.emplace().ParseFromString(jobs.ColumnBytes(5)) && whole;
      if (!jobs.IsNull(8) && jobs.ColumnInt(8) != ReasonHash(job.status)) job.because.clear();
      if (!whole)
        return absl::DataLossError(absl::StrCat(Named(reader_.get()), "the entry of job ",
                                                absl::CHexEscape(job.id), " is damaged",
                                                kMoveAway));
      Statement last(reader_.get(), absl::StrCat("reading the records of job ", job.id),
                     "SELECT max(step) FROM records WHERE job_id = ?");
      ASSIGN_OR_RETURN(const bool any, last.Text(job.id).Step());
      if (any && !last.IsNull(0)) job.next_record_step = last.ColumnInt(0) + 1;
      out.jobs.push_back(std::move(job));
    }
    RETURN_IF_ERROR(ReadAll("reading the daemons", "SELECT data FROM nodes", &out.nodes));
    Statement left(reader_.get(), "reading who left", "SELECT id, why FROM left_nodes");
    for (;;) {
      ASSIGN_OR_RETURN(const bool row, left.Step());
      if (!row) break;
      out.left[left.ColumnBytes(0)] = left.ColumnBytes(1);
    }
    Statement drained(reader_.get(), "reading who is drained", "SELECT id FROM drained_nodes");
    for (;;) {
      ASSIGN_OR_RETURN(const bool row, drained.Step());
      if (!row) break;
      out.drained.insert(drained.ColumnBytes(0));
    }
    RETURN_IF_ERROR(ReadAll("reading the links", "SELECT data FROM links", &out.links));
    Statement removed(reader_.get(), "reading the removed jobs",
                      "SELECT id FROM removed_jobs ORDER BY rowid");
    for (;;) {
      ASSIGN_OR_RETURN(const bool row, removed.Step());
      if (!row) break;
      out.removed.push_back(removed.ColumnBytes(0));
    }
    return out;
  }

  absl::StatusOr<std::vector<JobRecord>> Records(const std::string& job_id, int64_t from_step,
                                                 int limit) override {
    std::vector<JobRecord> out;
    MutexLock lock(&read_mutex_);
    Statement select(
        reader_.get(), absl::StrCat("reading the records of job ", job_id),
        "SELECT data FROM records WHERE job_id = ? AND step >= ? ORDER BY step LIMIT ?");
    select.Text(job_id).Int(from_step).Int(limit);
    for (;;) {
      ASSIGN_OR_RETURN(const bool row, select.Step());
      if (!row) return out;
      if (!out.emplace_back().ParseFromString(select.ColumnBytes(0))) out.pop_back();
    }
  }

 private:
  absl::StatusOr<uint64_t> Next(const std::string& counter) {
    MutexLock lock(&write_mutex_);
    Statement next(writer_.get(), absl::StrCat("taking the next number of a ", counter),
                   "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = "
                   "value + 1 RETURNING value");
    ASSIGN_OR_RETURN(const bool row, next.Text(counter).Step());
    if (!row) return absl::InternalError("state database: a counter has no value");
    const uint64_t value = next.ColumnInt(0);
    RETURN_IF_ERROR(next.Run());  // commits
    return value;
  }

  absl::Status Raise(const std::string& counter, uint64_t value) {
    if (value == 0) return absl::OkStatus();
    if (value > kMaxCounter) {
      return absl::InvalidArgumentError(
          absl::StrCat(counter, " ", value, " is out of range; at most ", kMaxCounter));
    }
    MutexLock lock(&write_mutex_);
    return Statement(writer_.get(), absl::StrCat("counting each ", counter, " from ", value),
                     "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = "
                     "excluded.value WHERE excluded.value > value")
        .Text(counter)
        .Int(static_cast<int64_t>(value))
        .Run();
  }

  absl::Status WriteAll(const StoreBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_) {
    sqlite3* db = writer_.get();
    for (const std::string& id : batch.forgotten) {
      const std::string doing = absl::StrCat("dropping job ", id);
      RETURN_IF_ERROR(Statement(db, doing, "DELETE FROM jobs WHERE id = ?").Text(id).Run());
      RETURN_IF_ERROR(Statement(db, doing, "DELETE FROM records WHERE job_id = ?").Text(id).Run());
      RETURN_IF_ERROR(
          Statement(db, doing, "DELETE FROM job_notes WHERE job_id = ?").Text(id).Run());
      RETURN_IF_ERROR(
          Statement(db, doing, "DELETE FROM job_reasons WHERE job_id = ?").Text(id).Run());
      RETURN_IF_ERROR(
          Statement(db, doing, "INSERT OR REPLACE INTO removed_jobs VALUES (?)").Text(id).Run());
      RETURN_IF_ERROR(Statement(db, doing,
                                "DELETE FROM removed_jobs WHERE rowid <= "
                                "(SELECT max(rowid) FROM removed_jobs) - ?")
                          .Int(kMaxRemoved)
                          .Run());
    }
    for (const auto& [id, step] : batch.truncated) {
      RETURN_IF_ERROR(Statement(db, absl::StrCat("dropping records of job ", id),
                                "DELETE FROM records WHERE job_id = ? AND step >= ?")
                          .Text(id)
                          .Int(step)
                          .Run());
    }
    for (const StoredJob& job : batch.jobs) RETURN_IF_ERROR(WriteJob(job));
    for (const StoredRecord& r : batch.records) {
      RETURN_IF_ERROR(Statement(db, absl::StrCat("storing the records of job ", r.job_id),
                                "INSERT OR REPLACE INTO records VALUES (?, ?, ?)")
                          .Text(r.job_id)
                          .Int(r.record.step())
                          .Message(r.record)
                          .Run());
      if (r.record.step() >= kMaxStoredRecords && r.record.step() % 1000 == 0) {
        RETURN_IF_ERROR(Statement(db, absl::StrCat("dropping the oldest records of job ", r.job_id),
                                  "DELETE FROM records WHERE job_id = ? AND step < ?")
                            .Text(r.job_id)
                            .Int(r.record.step() - kMaxStoredRecords)
                            .Run());
      }
    }
    for (const NodeInfo& n : batch.nodes) RETURN_IF_ERROR(WriteNode(n, batch));
    for (const LinkMeasurement& l : batch.links) {
      RETURN_IF_ERROR(
          Statement(db, "storing a link", "INSERT OR REPLACE INTO links VALUES (?, ?, ?)")
              .Text(l.from_id())
              .Text(l.to_id())
              .Message(l)
              .Run());
    }
    return absl::OkStatus();
  }

  absl::Status WriteNode(const NodeInfo& n, const StoreBatch& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_) {
    sqlite3* db = writer_.get();
    RETURN_IF_ERROR(Statement(db, absl::StrCat("storing daemon ", n.name()),
                              "INSERT OR REPLACE INTO nodes VALUES (?, ?)")
                        .Text(n.id())
                        .Message(n)
                        .Run());
    RETURN_IF_ERROR(Statement(db, absl::StrCat("storing daemon ", n.name()),
                              "DELETE FROM left_nodes WHERE id = ?")
                        .Text(n.id())
                        .Run());
    RETURN_IF_ERROR(Statement(db, absl::StrCat("storing whether daemon ", n.name(), " is drained"),
                              batch.drained.count(n.id()) > 0
                                  ? "INSERT OR REPLACE INTO drained_nodes VALUES (?)"
                                  : "DELETE FROM drained_nodes WHERE id = ?")
                        .Text(n.id())
                        .Run());
    const auto why = batch.left.find(n.id());
    if (why == batch.left.end()) return absl::OkStatus();
    return Statement(db, absl::StrCat("storing that daemon ", n.name(), " left"),
                     "INSERT INTO left_nodes VALUES (?, ?)")
        .Text(n.id())
        .Text(why->second)
        .Run();
  }

  absl::Status WriteJob(const StoredJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_) {
    sqlite3* db = writer_.get();
    RETURN_IF_ERROR(
        Statement(db, absl::StrCat("storing job ", job.id),
                  "INSERT INTO jobs (id, number, waits, spec, status) VALUES (?, ?, ?, ?, ?) ON "
                  "CONFLICT (id) DO UPDATE SET "
                  "waits = excluded.waits, spec = excluded.spec, status = excluded.status")
            .Text(job.id)
            .Int(job.number)
            .Int(!job.wait_for_nodes ? 0
                                     : kWaits | (job.step_asked ? kStepAsked : 0) |
                                           (job.accepts_changes ? 0 : kNoChanges))
            .Message(job.spec)
            .Message(job.status)
            .Run());
    RETURN_IF_ERROR(Statement(db, absl::StrCat("storing notes on job ", job.id),
                              "INSERT OR REPLACE INTO job_notes VALUES (?, ?, ?)")
                        .Text(job.id)
                        .Int(job.failed_checkpoint)
                        .Text(job.because)
                        .Run());
    RETURN_IF_ERROR(Statement(db, absl::StrCat("storing notes on job ", job.id),
                              "INSERT OR REPLACE INTO job_reasons VALUES (?, ?)")
                        .Text(job.id)
                        .Int(ReasonHash(job.status))
                        .Run());
    if (!job.plan.has_value()) return absl::OkStatus();
    return Statement(db, absl::StrCat("storing the plan of job ", job.id),
                     "UPDATE jobs SET plan = ? WHERE id = ?")
        .Message(*job.plan)
        .Text(job.id)
        .Run();
  }

  template <typename M>
  absl::Status ReadAll(const char* doing, const char* sql, std::vector<M>* out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mutex_) {
    Statement select(reader_.get(), doing, sql);
    for (;;) {
      ASSIGN_OR_RETURN(const bool row, select.Step());
      if (!row) return absl::OkStatus();
      if (!out->emplace_back().ParseFromString(select.ColumnBytes(0))) out->pop_back();
    }
  }

  Mutex write_mutex_;
  Mutex read_mutex_;
  const Database writer_;
  const Database reader_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& state_dir) {
  const std::string path = state_dir + "/coordinator.db";
  ASSIGN_OR_RETURN(Database writer, Connect(path));
  RETURN_IF_ERROR(MakeSchema(writer.get()));
  RETURN_IF_ERROR(Execute(writer.get(), "making its tables", kAdded));
  ASSIGN_OR_RETURN(Database reader, Connect(path));
  return std::unique_ptr<Store>(new SqliteStore(std::move(writer), std::move(reader)));
}

}  // namespace isthmus::coordinator
