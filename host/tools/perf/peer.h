/* A peer of `gatun perf --vs`: another library's all-reduce, in a module of its own (libgatun_perf_NAME.so beside the
 * program or in ../lib), so that the program itself needs neither Gloo nor MPI. C only: the module and the program share no
 * C++ types.
 *
 * All calls come from one thread of each rank, collectively and in the same order. Functions return 0, or fill `error`.
 */
#ifndef GATUN_TOOLS_PERF_PEER_H_
#define GATUN_TOOLS_PERF_PEER_H_

#include <stddef.h>

#include "gatun/gatun.h"

#define GATUN_PEER_VERSION 1
#define GATUN_PEER_ERROR_BYTES 256

typedef struct {
  int rank, nranks;
  const char* directory; /* a directory that all ranks see, empty at first */
  const char* address;   /* local address to use; NULL: the peer's own choice */
} gatun_peer_config;

typedef struct {
  int version;                   /* GATUN_PEER_VERSION */
  const char* (*describe)(void); /* name and version, for the header of the table */
  /* early: before anything else of the process starts, rank and nranks still unknown; may be NULL. */
  int (*early)(char* error);
  int (*open)(const gatun_peer_config* config, char* error);
  void (*close)(void);
  /* The algorithms that run with this many ranks; the best of them is compared. */
  int (*variants)(int nranks);
  const char* (*variant_name)(int variant);
  /* In place, on data. prepare makes what one size needs, run is timed, finish frees it. Several variants may be prepared.
   */
  int (*prepare)(int variant, void* data, size_t count, gatun_type_t type, gatun_op_t op, char* error);
  int (*run)(int variant, char* error);
  void (*finish)(int variant);
} gatun_peer_api;

typedef const gatun_peer_api* (*gatun_peer_entry)(void); /* symbol: gatun_perf_peer */

#endif /* GATUN_TOOLS_PERF_PEER_H_ */
