#include "tests/fuzz/decoder_fuzz.h"

ISTHMUS_FUZZ_DECODERS("predict(quant(3))", "predict(topk(0.2), context=3, next) | zstd",
                      "delta(quant(3), cold=predict(quant(4)))")
