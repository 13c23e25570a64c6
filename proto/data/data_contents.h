// Which text a job reads, by what a daemon lists of its files (DataFile.contents). Daemons and the
// coordinator compute it alike, so that a resume can tell another text before it starts.
// Thread: pure function.
#ifndef ISTHMUS_PROTO_DATA_DATA_CONTENTS_H_
#define ISTHMUS_PROTO_DATA_DATA_CONTENTS_H_

#include <cstdint>

#include "proto/job.pb.h"
#include "proto/plan.pb.h"

namespace isthmus {

// The contents of the file that data.path names; of a directory a hash over those of the shards
// in it and their names (the same text at another place is the same). 0: it is not listed, or
// the contents of a file are not known.
uint64_t DataContents(const DataSpec& data,
                      const google::protobuf::RepeatedPtrField<DataFile>& listed);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_DATA_DATA_CONTENTS_H_
