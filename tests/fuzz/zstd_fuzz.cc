#include "tests/fuzz/decoder_fuzz.h"

ISTHMUS_FUZZ_DECODERS("none | zstd", "quant(4) | zstd", "delta(quant(3)) | zstd")
