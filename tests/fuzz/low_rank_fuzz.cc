#include "tests/fuzz/decoder_fuzz.h"

ISTHMUS_FUZZ_DECODERS("lowrank(2)", "lowrank(3, values=bf16)", "lep(lowrank(1))", "ef(sign)",
                      "sign(token)", "sign(group=32)", "ef(topk(0.3))", "delta(lowrank(2))")
