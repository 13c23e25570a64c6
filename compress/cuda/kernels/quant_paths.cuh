// The kernels that quant.cu chooses from. Thread: host functions, any.
#ifndef ISTHMUS_COMPRESS_CUDA_KERNELS_QUANT_PATHS_CUH_
#define ISTHMUS_COMPRESS_CUDA_KERNELS_QUANT_PATHS_CUH_

#include "compress/cuda/kernels/quant_math.cuh"

namespace isthmus::compress::cuda {

// One pass, a scale per channel: a cluster of blocks holds a strip of 64 channels, all positions,
// in its shared memory.
bool ChannelFits(const Matrix& matrix);
Error EncodeChannels(const Launch<EncodeJob>& launch, DType dtype, bool delta, int count,
                     Stream stream);

// One pass, a scale per token or group: some warps hold a position in their registers.
bool RowFits(const QuantFormat& format, const Matrix& matrix, DType dtype);
Error EncodeRows(const Launch<EncodeJob>& launch, DType dtype, bool delta, int count,
                 Stream stream);

// Decoding runs of vectors.
bool DecodeFits(const QuantFormat& format, const Matrix& matrix);
Error DecodeRuns(const Launch<DecodeJob>& launch, DType dtype, bool by_channel, bool delta,
                 int count, Stream stream);

// Anything. `scratch`: 8 bytes a scale and sample.
Error EncodeAny(const QuantFormat& format, const Launch<EncodeJob>& launch, DType dtype, int count,
                void* scratch, Stream stream);
Error DecodeAny(const QuantFormat& format, const Launch<DecodeJob>& launch, DType dtype, int count,
                Stream stream);

Error LastError();  // of a launch

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_KERNELS_QUANT_PATHS_CUH_
