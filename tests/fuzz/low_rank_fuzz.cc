#include "tests/fuzz/decoder_fuzz.h"

ISTHMUS_FUZZ_DECODERS("lowrank(2)", "lowrank(3, values=bf16)", "lep(lowrank(1))", "ef(sign)",
                      "sign(token)")
