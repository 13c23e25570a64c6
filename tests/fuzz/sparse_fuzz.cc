#include "tests/fuzz/decoder_fuzz.h"

ISTHMUS_FUZZ_DECODERS("topk(0.2)", "topk(0.1, global, values=quant(4, group=32))", "randomk(0.3)",
                      "cocktail(0.5, 0.5, 4)", "delta(topk(0.3, values=quant(3, token)))", "kept",
                      "kept(quant(3)) | zstd", "randomk(0.5, scaled, values=topk(0.4))")
