// Open MPI (or any MPI) as a peer. Which of its transports runs is chosen by the MCA settings of the mpirun around us.
#define OMPI_SKIP_MPICXX 1  // the C interface only
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <climits>
#include <cstdio>
#include <cstring>

#include "host/tools/perf/peer.h"

namespace {

struct Prepared {
  void* data = nullptr;
  int count = 0;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Op op = MPI_OP_NULL;
} prepared;

int fail(char* error, const char* text) {
  std::snprintf(error, GATUN_PEER_ERROR_BYTES, "%s", text);
  return -1;
}

int fail_with_code(char* error, const char* call, int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  std::snprintf(error, GATUN_PEER_ERROR_BYTES, "%s: %s", call, text);
  return -1;
}

const char* describe() {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  if (char* comma = std::strchr(text, ',')) *comma = '\0';
  return text;
}

int early(char* error) {
  int provided = 0;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  if (code != MPI_SUCCESS) return fail(error, "MPI_Init_thread failed");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  return 0;
}

int open_peer(const gatun_peer_config* config, char* error) {
  int rank = -1, size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank == config->rank && size == config->nranks) return 0;
  std::snprintf(error, GATUN_PEER_ERROR_BYTES,
                "MPI says rank %d of %d, the launcher says %d of %d: start gatun perf by mpirun, or with -g N", rank, size,
                config->rank, config->nranks);
  return -1;
}

void close_peer() {
  int done = 0;
  MPI_Finalized(&done);
  if (!done) MPI_Finalize();
}

MPI_Datatype mpi_type(gatun_type_t type) {
  switch (type) {
    case GATUN_I8: return MPI_INT8_T;
    case GATUN_U8: return MPI_UINT8_T;
    case GATUN_I32: return MPI_INT32_T;
    case GATUN_U32: return MPI_UINT32_T;
    case GATUN_I64: return MPI_INT64_T;
    case GATUN_U64: return MPI_UINT64_T;
    case GATUN_F32: return MPI_FLOAT;
    case GATUN_F64: return MPI_DOUBLE;
    default: return MPI_DATATYPE_NULL;
  }
}

MPI_Op mpi_op(gatun_op_t op) {
  switch (op) {
    case GATUN_SUM: return MPI_SUM;
    case GATUN_PROD: return MPI_PROD;
    case GATUN_MAX: return MPI_MAX;
    case GATUN_MIN: return MPI_MIN;
    default: return MPI_OP_NULL;
  }
}

int variants(int) {
  return 1;
}
const char* variant_name(int) {
  return "allreduce";
}

int prepare(int, void* data, size_t count, gatun_type_t type, gatun_op_t op, char* error) {
  if (mpi_type(type) == MPI_DATATYPE_NULL) return fail(error, "MPI has no such element type: choose f32, f64 or an integer");
  if (mpi_op(op) == MPI_OP_NULL) return fail(error, "MPI has no average: choose sum, prod, max or min");
  if (count > INT_MAX) return fail(error, "more elements than MPI counts");
  prepared = Prepared{data, static_cast<int>(count), mpi_type(type), mpi_op(op)};
  return 0;
}

int run(int, char* error) {
  const int code = MPI_Allreduce(MPI_IN_PLACE, prepared.data, prepared.count, prepared.type, prepared.op, MPI_COMM_WORLD);
  return code == MPI_SUCCESS ? 0 : fail_with_code(error, "MPI_Allreduce", code);
}

void finish(int) {
  prepared = Prepared{};
}

}  // namespace

extern "C" GATUN_API const gatun_peer_api* gatun_perf_peer(void) {
  static const gatun_peer_api api = {GATUN_PEER_VERSION, describe,     early,   open_peer, close_peer,
                                     variants,           variant_name, prepare, run,       finish};
  return &api;
}
