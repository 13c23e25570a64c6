#include "worker/data/file_look.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status.h"
#include "proto/data/data_files.h"

namespace isthmus::worker {
namespace {

// llm.c's files start with 256 int32: magic (a date), version, what the kind of file has, zeros.
constexpr int64_t kHeaderBytes = 256 * 4;
struct TokenHeader {
  int32_t magic, version;
  const char* format;
};
constexpr TokenHeader kTokenHeaders[] = {{20240520, 1, kFormatUint16},   // GPT-2's
                                         {20240801, 7, kFormatUint32}};  // Llama 3's
constexpr int32_t kFirstDate = 20230101, kLastDate = 20391231;
constexpr int64_t kHeaderFields = 64;  // at most; zeros after them

// The upper halves of 32-bit ids are below this.
constexpr int kUpperHalves = kMaxVocabulary >> 16;

int32_t ReadInt32(const char* at) {
  int32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// ---- first bytes ----

struct Magic {
  absl::string_view start, format, words;
};
constexpr Magic kMagics[] = {
    {"\x1f\x8b\x08", "gzip", "compressed with gzip: unpack it"},
    {"\x28\xb5\x2f\xfd", "zstd", "compressed with zstd: unpack it"},
    {"\xfd\x37zXZ", "xz", "compressed with xz: unpack it"},
    {"BZh91AY&SY", "bzip2", "compressed with bzip2: unpack it"},
    {"PK\x03\x04", "zip", "a zip archive (as PyTorch's and numpy's): unpack it"},
    {"\x93NUMPY", "numpy", "an array with numpy's header: write it with ids.tofile(FILE)"},
    {"PAR1\x15", "parquet",
     "a Parquet table: write its text or its token ids into a file of their own"},
    {{"ARROW1\0\0", 8},
     "arrow",
     "an Arrow table: write its text or its token ids into a file of their own"},
};

const char* KindOf(int32_t magic) {
  switch (magic) {
    case 20240326:
      return "GPT-2 weights of llm.c";
    case 20240327:
      return "a debugging state of llm.c";
    case 20240328:
      return "a tokenizer of llm.c";
    case 20240522:
      return "a multiple-choice set of llm.c (as hellaswag_val.bin)";
    default:
      return "a file of llm.c's kind";
  }
}

void LookAtTokenHeader(const TokenHeader& header, const std::string& head, int64_t bytes,
                       FileLook* look) {
  const int32_t version = ReadInt32(head.data() + 4);
  const int64_t claimed = ReadInt32(head.data() + 8), width = TokenBytes(header.format);
  look->format = header.format;
  look->offset = kHeaderBytes;
  look->tokens = (bytes - kHeaderBytes) / width;
  if (version != header.version) {
    look->problem = absl::StrCat("offset 4: header version ", version, " is not known (expected ",
                                 header.version, ")");
  } else if (claimed < 0 || claimed * width != bytes - kHeaderBytes) {
    look->problem =
        absl::StrCat("offset 8: the header says ", claimed, " tokens but ", bytes - kHeaderBytes,
                     " bytes follow it: the shard is cut off or damaged; fetch it again");
  }
}

// True if the first bytes say it all.
bool LookAtHead(const std::string& head, int64_t bytes, FileLook* look) {
  for (const Magic& m : kMagics) {
    if (!absl::StartsWith(head, m.start)) continue;
    look->format = std::string(m.format);
    look->problem = absl::StrCat("offset 0: it is ", m.words);
    return true;
  }
  if (static_cast<int64_t>(head.size()) < kHeaderBytes) return false;
  const int32_t magic = ReadInt32(head.data());
  for (const TokenHeader& header : kTokenHeaders) {
    if (magic != header.magic) continue;
    LookAtTokenHeader(header, head, bytes, look);
    return true;
  }
  const bool zeros = std::all_of(head.begin() + 4 * kHeaderFields, head.begin() + kHeaderBytes,
                                 [](char c) { return c == 0; });
  if (magic < kFirstDate || magic > kLastDate || !zeros) return false;
  look->format = "llm.c";
  look->problem = absl::StrCat("offset 0: it is ", KindOf(magic), " (magic ", magic,
                               "), no shard of token ids (magic ", kTokenHeaders[0].magic, " or ",
                               kTokenHeaders[1].magic, ")");
  return true;
}

// ---- blocks ----

// What the 16-bit words are like, by their place modulo four.
struct Words {
  int64_t count = 0;  // a place
  int64_t zeros[4] = {}, empty[4] = {}, upper[4] = {};
  bool text = true, low_bytes_zero = true;
  uint16_t highest = 0;
  uint32_t highest32 = 0;

  void Add(const char* bytes, int64_t size) {
    for (int64_t i = 0; i < size && text; ++i) text = IsText(bytes[i]);
    for (int64_t i = 0; i + 8 <= size; i += 8, ++count) {
      uint16_t w[4];
      std::memcpy(w, bytes + i, 8);
      for (int k = 0; k < 4; ++k) {
        const bool negative = w[k] == 0xffff;  // as the upper parts of -1 and other marks are
        zeros[k] += w[k] == 0;
        empty[k] += w[k] == 0 || negative;
        upper[k] += w[k] < kUpperHalves || negative;
        low_bytes_zero = low_bytes_zero && (w[k] & 0xff) == 0;
        highest = std::max(highest, w[k]);
      }
      highest32 = std::max({highest32, w[0] | uint32_t{w[1]} << 16, w[2] | uint32_t{w[3]} << 16});
    }
    uint16_t w;
    uint32_t wide;
    for (int64_t i = size / 8 * 8; i + 2 <= size; i += 2) {  // the file's end
      std::memcpy(&w, bytes + i, 2);
      highest = std::max(highest, w);
      if (i % 4 != 0 || i + 4 > size) continue;
      std::memcpy(&wide, bytes + i, 4);
      highest32 = std::max(highest32, wide);
    }
  }
  static bool IsText(char c) {
    const unsigned char u = c;
    return u >= 0x20 || (u >= 7 && u <= 13) || u == 27;
  }
  // All but a few: one id that is wrong must not make two ids of each.
  bool NearlyAll(int64_t words) const { return 16 * words >= 15 * count; }
  bool NearlyEmpty(int k) const { return NearlyAll(empty[k]); }
  bool NearlyUpper(int k) const { return NearlyAll(upper[k]); }
  bool MostlyLarge(int k) const { return 4 * upper[k] < count; }
  bool Nothing() const {
    return std::all_of(zeros, zeros + 4, [this](int64_t z) { return z == count; });
  }
  bool LooksInt64() const {
    return !NearlyEmpty(0) && NearlyUpper(1) && NearlyEmpty(2) && NearlyEmpty(3);
  }
  // The upper halves are small or 0, and the lower ones are not: ids of 16 bits have no such
  // rhythm.
  bool LooksUint32() const {
    if (NearlyEmpty(1) && NearlyEmpty(3)) return !NearlyEmpty(0) && !NearlyEmpty(2);
    return NearlyUpper(1) && NearlyUpper(3) && MostlyLarge(0) && MostlyLarge(2);
  }
};

std::string WideWords(uint32_t highest) {
  return absl::StrCat("offset 0: these look like 64-bit ids, the highest one seen is ", highest,
                      ": write them as ids of 16 bits, or of 32 for a vocabulary beyond 65536 "
                      "(numpy: ids.astype(numpy.",
                      highest < 65536 ? "uint16" : "uint32", ").tofile(FILE))");
}

std::string PartOfAnId(int64_t bytes, int bits) {
  return absl::StrCat("offset ", bytes - bytes % (bits / 8), ": ", bytes,
                      " bytes are no whole number of ", bits, "-bit ids");
}

// Of a file without a header.
void Judge(const Words& words, int64_t bytes, FileLook* look) {
  const bool enough = 4 * words.count >= kLookWords;
  look->format = words.text || bytes % 2 != 0 ? kFormatBytes : kFormatUint16;
  if (enough && words.Nothing()) {
    look->problem =
        "offset 0: nothing but zeros where it was looked at: was it copied to its end? Fetch it "
        "again";
  } else if (enough && words.text) {
    look->problem =
        "offset 0: it looks like plain text, not like token ids: set data.format: bytes, or "
        "encode it first";
  } else if (enough && words.LooksInt64()) {
    look->format = kFormatInt64;
    look->problem = WideWords(words.highest32);
  } else if (enough && words.LooksUint32()) {
    look->format = kFormatUint32;
    if (bytes % 4 != 0) look->problem = PartOfAnId(bytes, 32) + ": was it copied to its end?";
  } else if (enough && words.low_bytes_zero) {
    look->problem =
        "offset 0: these look like 16-bit ids with the high byte first: write them with the low "
        "byte first (numpy: '<u2')";
  } else if (bytes % 2 != 0) {
    look->problem = PartOfAnId(bytes, 16) + "; for plain text set data.format: bytes";
  }
  const int64_t width = TokenBytes(look->format);
  look->tokens = bytes / (width > 0 ? width : look->format == kFormatBytes ? 1 : 8);
}

}  // namespace

absl::StatusOr<FileLook> LookAt(const WatchedFile& file, int64_t max_bytes) {
  const int64_t bytes = file.bytes();
  FileLook look;
  std::string block(std::min(bytes, kHeaderBytes), '\0');
  RETURN_IF_ERROR(file.Read(0, block.size(), &block[0]));
  const bool headed = LookAtHead(block, bytes, &look);
  Words words;
  Hasher hasher;
  hasher.Update(&bytes, sizeof bytes);
  const int64_t blocks = (bytes + kLookBlockBytes - 1) / kLookBlockBytes;
  const int64_t read = std::min(blocks, std::max<int64_t>(2, max_bytes / kLookBlockBytes));
  for (int64_t i = 0; i < read; ++i) {
    const int64_t begin = kLookBlockBytes * (read == blocks ? i : i * (blocks - 1) / (read - 1));
    block.resize(std::min(kLookBlockBytes, bytes - begin));
    RETURN_IF_ERROR(file.Read(begin, block.size(), &block[0]));
    hasher.Update(block.data(), block.size());
    const int64_t skip = std::min<int64_t>(block.size(), std::max<int64_t>(0, look.offset - begin));
    words.Add(block.data() + skip, block.size() - skip);
  }
  look.contents = hasher.Digest();
  if (!headed) Judge(words, bytes, &look);
  if (look.format == kFormatUint16 && look.tokens > 0) {
    look.highest_id = words.highest;
  } else if (look.format == kFormatUint32 || look.format == kFormatInt64) {
    look.highest_id = words.highest32;
  }
  return look;
}

}  // namespace isthmus::worker
