#include "tests/fuzz/decoder_fuzz.h"

ISTHMUS_FUZZ_DECODERS("quant(1)", "quant(2, token)", "quant(3)", "quant(4, group=32)",
                      "quant(5, symmetric)", "quant(8, rms)", "quant(6, group=32, rms, stochastic)",
                      "quant(7, token)", "autoencoder(11, values=quant(4))")
