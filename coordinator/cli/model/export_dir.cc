#include "coordinator/cli/model/export_dir.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/file/durable_directory.h"
#include "base/file/durable_file.h"
#include "base/status.h"
#include "proto/model/family.h"
#include "proto/model/model_config.h"

namespace isthmus::cli {
namespace {

namespace fs = std::filesystem;

absl::Status FileError(const std::string& what, const std::string& path) {
  return absl::InternalError(absl::StrCat("can't ", what, " ", path, ": ", std::strerror(errno)));
}

absl::StatusOr<nlohmann::json> ReadHeader(std::ifstream* in, const std::string& path,
                                          int64_t file_bytes, int64_t* data_at) {
  unsigned char length[8] = {};
  in->read(reinterpret_cast<char*>(length), sizeof(length));
  int64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = (header_bytes << 8) | length[i];
  if (!*in || header_bytes < 2 || header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - 8) {
    return absl::DataLossError(absl::StrCat(path, " is not a safetensors file"));
  }
  std::string text(static_cast<size_t>(header_bytes), '\0');
  in->read(text.data(), header_bytes);
  *data_at = 8 + header_bytes;
  nlohmann::json header = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!*in || !header.is_object())
    return absl::DataLossError(absl::StrCat(path, " has a damaged header"));
  for (const auto& item : header.items()) {
    if (item.key() == "__metadata__") continue;
    const nlohmann::json& value = item.value();
    if (!value.is_object() || !value.contains("data_offsets"))
      return absl::DataLossError(absl::StrCat(path, ": ", item.key(), " has no data_offsets"));
    const nlohmann::json& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned() ||
        offsets[0].get<uint64_t>() > offsets[1].get<uint64_t>() ||
        offsets[1].get<uint64_t>() > static_cast<uint64_t>(file_bytes - *data_at)) {
      return absl::DataLossError(absl::StrCat(path, ": ", item.key(), " lies outside the file"));
    }
  }
  return header;
}

}  // namespace

absl::Status MarkForTransformers(const std::string& path) {
  std::error_code error;
  const auto size = static_cast<int64_t>(fs::file_size(path, error));
  std::ifstream in(path, std::ios::binary);
  if (error || !in) return FileError("read", path);
  int64_t data_at = 0;
  ASSIGN_OR_RETURN(nlohmann::json header, ReadHeader(&in, path, size, &data_at));
  if (header.contains("__metadata__") && header["__metadata__"].is_object() &&
      header["__metadata__"].value("format", "") == "pt") {
    return absl::OkStatus();
  }
  if (!header["__metadata__"].is_object()) header["__metadata__"] = nlohmann::json::object();
  header["__metadata__"]["format"] = "pt";
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::string marked = path + ".marked";
  std::ofstream out(marked, std::ios::binary | std::ios::trunc);
  for (int i = 0; i < 8; ++i) out.put(static_cast<char>(text.size() >> (8 * i) & 0xff));
  out << text;
  if (size > data_at) out << in.rdbuf();
  out.close();
  if (!out || !in) return FileError("write", marked);
  return rename(marked.c_str(), path.c_str()) == 0 ? absl::OkStatus()
                                                   : FileError("rename to", path);
}

std::string LoadWords(const ModelSpec& model, const std::string& dir, bool has_tokenizer) {
  if (IsMlp(model))
    return absl::StrCat("load it: safetensors.torch.load_file(\"", dir,
                        "/model.safetensors\"): mlp.layers.0.weight and on, [in, out], and "
                        "mlp.output.weight; a row's values are divided by 255\n");
  return absl::StrCat(
      "load it: transformers.GPT2LMHeadModel.from_pretrained(\"", dir, "\")\n",
      has_tokenizer ? absl::StrCat("try it: isthmus generate ", dir, " \"Once upon a time\"\n")
                    : "");
}

absl::Status WriteExport(const std::string& dir, bool force, const ModelSpec& model,
                         const std::function<absl::Status(const std::string& path)>& fetch,
                         const std::map<std::string, std::string>& more_files) {
  ASSIGN_OR_RETURN(const std::unique_ptr<DurableDirectory> out,
                   DurableDirectory::Create(dir, force));
  const std::string weights = out->path() + "/model.safetensors";
  RETURN_IF_ERROR(fetch(weights));
  RETURN_IF_ERROR(MarkForTransformers(weights));
  RETURN_IF_ERROR(SyncFile(weights));
  RETURN_IF_ERROR(WriteFileDurably(out->path() + "/config.json", ModelConfigJson(model)));
  for (const auto& [name, bytes] : more_files)
    RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(out->path(), "/", name), bytes));
  return out->Commit();
}

}  // namespace isthmus::cli
