#include "tests/fuzz/decoder_fuzz.h"

ISTHMUS_FUZZ_DECODERS("none", "bf16", "fp16")
