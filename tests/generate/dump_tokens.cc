// dump_tokens DIR VOCABULARY: reads a JSON list of texts, writes a JSON list of [ids, the bytes
// they stand for as numbers]. For check_tokens.py.
#include <iostream>
#include <nlohmann/json.hpp>

#include "worker/generate/tokenizer.h"

int main(int argc, char** argv) {
  using isthmus::generate::Tokenizer;
  if (argc != 3) return 2;
  const auto tokenizer = Tokenizer::Read(argv[1], std::atoll(argv[2]));
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().message() << "\n";
    return 1;
  }
  nlohmann::json out = nlohmann::json::array();
  for (const auto& text : nlohmann::json::parse(std::cin)) {
    const auto ids = tokenizer->Encode(text.get<std::string>());
    if (!ids.ok()) {
      std::cerr << ids.status().message() << "\n";
      return 1;
    }
    std::vector<int> bytes;
    for (const int32_t id : *ids) {
      for (const char byte : tokenizer->Decode(id))
        bytes.push_back(static_cast<unsigned char>(byte));
    }
    out.push_back({*ids, bytes});
  }
  std::cout << out << "\n";
  return 0;
}
