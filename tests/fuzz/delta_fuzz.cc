#include "tests/fuzz/decoder_fuzz.h"

ISTHMUS_FUZZ_DECODERS("delta(quant(3))", "delta(quant(4, token), cold=bf16)",
                      "delta(bf16, cold=quant(8))", "delta(none)", "delta(quant(3), buffer=8)",
                      "delta(quant(2, group=32), cold=bf16, buffer=2)")
