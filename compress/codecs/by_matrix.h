// A frame that is a run of tensors one after the other (CodecOptions.shapes: the gradients of a
// stage): each matrix goes by a codec of its own, with a state of its own, and each vector as fp32.
// For codecs that see rows and columns (ByMatrix). The payloads of the tensors follow each other in
// their order; how long each is follows from its shape. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CODECS_BY_MATRIX_H_
#define ISTHMUS_COMPRESS_CODECS_BY_MATRIX_H_

#include <memory>

#include "absl/status/statusor.h"
#include "compress/codec.h"

namespace isthmus::compress {

// InvalidArgument: shapes that are not positions x hidden elements, or a codec with zstd.
absl::StatusOr<std::unique_ptr<Encoder>> MakeByMatrixEncoder(const CodecSpec& spec,
                                                             const CodecOptions& options);
absl::StatusOr<std::unique_ptr<Decoder>> MakeByMatrixDecoder(const CodecSpec& spec,
                                                             const CodecOptions& options);

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_BY_MATRIX_H_
