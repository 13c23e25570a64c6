// What users may write as a codec: every name and every option, with its meaning. One table: the
// parser (codec_text.h) takes no name and no option that is not in it, its errors list what is, and
// `isthmus help job` prints it. Thread: pure functions.
#ifndef ISTHMUS_PROTO_CODEC_CODEC_GRAMMAR_H_
#define ISTHMUS_PROTO_CODEC_CODEC_GRAMMAR_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace isthmus {

struct CodecOption {
  absl::string_view form;  // "token", or "group=32..256"
  absl::string_view meaning;
  absl::string_view word() const { return form.substr(0, form.find('=')); }
};

struct CodecForm {
  absl::string_view name;      // "quant"
  absl::string_view argument;  // what comes first within the parentheses: "BITS"; empty: nothing
  bool optional = false;       // the argument
  absl::string_view meaning;
  absl::Span<const CodecOption> options;
};

absl::Span<const CodecForm> CodecForms();

// Null: there is no such codec, or it has no such option.
const CodecForm* FindCodecForm(absl::string_view name);
const CodecOption* FindCodecOption(absl::string_view name, absl::string_view word);

// "none, bf16, fp16, quant(BITS), ..."
std::string CodecList();

// "channel, token, group=32..256, ...", of a codec that has some.
std::string CodecOptionList(absl::string_view name);

// Lines for a terminal, a codec or an option each.
std::string CodecHelp();

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_CODEC_CODEC_GRAMMAR_H_
