/* Gatun's C API: all-reduce and its relatives, summed by an aggregation switch in the network.
 *
 * Conventions:
 *   1. Handles are opaque. Every function returns a code: 0 done, > 0 in progress, < 0 error (GATUN_*).
 *   2. After an error, gatun_last_error() gives one sentence that names the thing and the fix.
 *   3. Buffers are host memory of any alignment; count is in elements; send == recv is in place; count == 0 is allowed.
 *   4. Operations go through the switch while there is one, and on without it when it dies, also in mid-operation, unless
 *      the option fallback is "off".
 *   5. All ranks of a communicator call the same operations in the same order. A difference in kind, type, operator, count,
 *      root or tag is GATUN_MISMATCH on every rank, no receive buffer is touched, and the communicator stays usable.
 *   6. Argument order follows NCCL. Any thread may call; operations of one communicator are ordered by their call.
 *   7. No function waits for ever: operations end at their timeout with an error that names who is late.
 *   8. Option structs begin with their size, so that a newer library serves an older caller. Use the _INIT macros.
 */
#ifndef GATUN_GATUN_H_
#define GATUN_GATUN_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#error "Gatun runs on Linux"
#endif

#define GATUN_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Codes. */
enum {
  GATUN_SUCCESS = 0,
  GATUN_IN_PROGRESS = 1,
  GATUN_INVALID_ARGUMENT = -1,
  GATUN_MISMATCH = -2,    /* ranks disagree on the operation; the communicator stays usable */
  GATUN_TIMEOUT = -3,     /* a deadline passed; the sentence names who is late */
  GATUN_RANK_LOST = -4,   /* a rank died or left; the communicator is finished */
  GATUN_SWITCH_LOST = -5, /* the switch or its controller is gone */
  GATUN_REFUSED = -6,     /* the switch did not admit this rank or job; the sentence says what differs or is missing */
  GATUN_UNSUPPORTED = -7,
  GATUN_SYSTEM = -8,      /* the operating system said no */
  GATUN_ABORTED = -9,     /* gatun_comm_abort was called here or on another rank */
  GATUN_INTERNAL = -10
};

/* Element types and operators have NCCL's numbers. Floats of 16 and 8 bits are added in f32 and rounded once; NaN
 * propagates; integers wrap. GATUN_AVG divides before the last rounding (integers truncate toward zero). */
typedef enum {
  GATUN_I8 = 0, GATUN_U8 = 1, GATUN_I32 = 2, GATUN_U32 = 3, GATUN_I64 = 4, GATUN_U64 = 5,
  GATUN_F16 = 6, GATUN_F32 = 7, GATUN_F64 = 8, GATUN_BF16 = 9, GATUN_F8E4M3 = 10, GATUN_F8E5M2 = 11
} gatun_type_t;

typedef enum { GATUN_SUM = 0, GATUN_PROD = 1, GATUN_MAX = 2, GATUN_MIN = 3, GATUN_AVG = 4 } gatun_op_t;

typedef struct gatun_comm* gatun_comm_t;
typedef struct gatun_request* gatun_request_t;

/* A store that all ranks share, such as PyTorch's. Keys are set once. */
typedef struct {
  size_t size; /* sizeof(gatun_store_t) */
  void* context;
  /* 0, or another number for failure. */
  int (*set)(void* context, const char* key, const char* value);
  /* Waits for the key up to the time, and copies its value with the final zero. 0, or another number for failure. */
  int (*get)(void* context, const char* key, char* value, size_t value_size, int64_t timeout_ms);
} gatun_store_t;
#define GATUN_STORE_INIT { sizeof(gatun_store_t), NULL, NULL, NULL }

/* How to join. NULL or 0 means: from GATUN_* in the environment, else the file named by GATUN_CONFIG, else the default. */
typedef struct {
  size_t size;             /* sizeof(gatun_options_t) */
  const char* address;     /* switch controller, "host:port", default 127.0.0.1:7117 */
  const char* job;         /* all ranks of a job give the same name; default "default" */
  const char* transport;   /* "auto", "shm", "udp", "verbs", "dpdk" */
  int trees;               /* aggregation trees of this job */
  int window;              /* chunks in flight per tree, a power of two */
  int payload_bytes;       /* most payload of one packet; 0: what the path carries */
  int64_t timeout_ms;      /* deadline of one operation */
  int64_t join_timeout_ms; /* deadline for all ranks to have joined */
  const char* fallback;    /* without a switch: "ring"; "exact", with the switch's very bits; "off", an error */
  const char* rendezvous;  /* "host:port" of rank 0, where ranks meet that find no switch and have no store */
  int64_t detect_ms;       /* a switch that answers nothing for this long is dead */
  const gatun_store_t* store; /* where the ranks can meet; used during gatun_comm_create only */
} gatun_options_t;
#define GATUN_OPTIONS_INIT { sizeof(gatun_options_t), NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL, 0, NULL }

/* How to run one operation; NULL for the defaults. */
typedef struct {
  size_t size;        /* sizeof(gatun_call_t) */
  uint64_t tag;       /* part of the contract: operations with different tags never match */
  int64_t timeout_ms; /* 0: the communicator's */
  /* Called once on completion, from the thread that made the progress; must be short and may not call Gatun. The text is
   * "" on success and valid only during the call. With done set, request may be NULL. */
  void (*done)(void* context, int code, const char* error);
  void* context;
} gatun_call_t;
#define GATUN_CALL_INIT { sizeof(gatun_call_t), 0, 0, NULL, NULL }

/* What a communicator is and has done; counters run from its creation. */
typedef struct {
  size_t size;                 /* sizeof(gatun_stats_t) */
  int rank, nranks, trees, window;
  uint32_t payload_bytes;      /* of one packet, agreed by all ranks */
  char transport[16];          /* the way in use: udp, shm, verbs, dpdk; ring, exact without a switch; self: one rank */
  char address[64];            /* the switch it talks to; "" without one */
  uint64_t wire_bytes_sent, wire_bytes_received;     /* packets with their headers */
  uint64_t packets_sent, packets_received;
  uint64_t packets_resent;     /* contributions sent again */
  uint64_t packets_dropped;    /* received and refused: bad checksum, stale, foreign */
  uint64_t packets_marked;     /* results that carried a congestion mark */
  uint64_t operations;         /* completed */
  uint64_t ring_operations;    /* of those, done wholly or partly without the switch */
  uint64_t ring_bytes;         /* sent and received without the switch */
  uint64_t failovers;          /* how often the switch was given up */
  char why[256];               /* operations do not go through a switch now; "" when they do */
  uint64_t payload_bytes_copied; /* by this library on the way to and from the switch */
} gatun_stats_t;

GATUN_API int gatun_version(int* version); /* major * 10000 + minor * 100 + patch */
GATUN_API const char* gatun_error_string(int code);
/* The last error's sentence of this communicator, of this thread when comm is NULL. Valid until this thread's next call. */
GATUN_API const char* gatun_last_error(gatun_comm_t comm);

/* Joins rank of nranks; returns when all ranks have joined and every data path is proven, or with an error. */
GATUN_API int gatun_comm_create(gatun_comm_t* comm, int nranks, int rank, const gatun_options_t* options);
/* Leaves the job and frees everything, within 2 s whatever the other ranks do: what is pending is completed, or fails on all
 * ranks if that takes longer than a second, so wait for it first. In a child of fork(), where a communicator of the parent
 * cannot be used, it does nothing. */
GATUN_API int gatun_comm_destroy(gatun_comm_t comm);
/* Fails everything pending on all ranks with GATUN_ABORTED, at once, from any thread. gatun_comm_destroy must follow. */
GATUN_API int gatun_comm_abort(gatun_comm_t comm);
/* 0 while healthy, else the error that finished the communicator. */
GATUN_API int gatun_comm_async_error(gatun_comm_t comm);
GATUN_API int gatun_comm_stats(gatun_comm_t comm, gatun_stats_t* stats);

/* Operations whose send buffer lies in this memory are sent without a copy where the transport can (verbs); elsewhere this
 * changes nothing. Equal ranges are counted. The memory may be freed, or given other pages in any way, only after as many
 * calls of gatun_deregister(), which is refused while the transport reads it in place, or after gatun_comm_destroy(); and,
 * as any buffer, only after the operations on it have ended. After an error, such as a limit on locked memory, which the
 * sentence names, operations on the memory work all the same. */
GATUN_API int gatun_register(gatun_comm_t comm, void* address, size_t bytes);
GATUN_API int gatun_deregister(gatun_comm_t comm, const void* address);

/* Blocking. recv of reduce_scatter has recv_count elements and send nranks times that; allgather is its mirror. */
GATUN_API int gatun_allreduce(const void* send, void* recv, size_t count, gatun_type_t type, gatun_op_t op,
                              gatun_comm_t comm);
GATUN_API int gatun_reduce_scatter(const void* send, void* recv, size_t recv_count, gatun_type_t type, gatun_op_t op,
                                   gatun_comm_t comm);
GATUN_API int gatun_allgather(const void* send, void* recv, size_t send_count, gatun_type_t type, gatun_comm_t comm);
GATUN_API int gatun_broadcast(const void* send, void* recv, size_t count, gatun_type_t type, int root, gatun_comm_t comm);
GATUN_API int gatun_reduce(const void* send, void* recv, size_t count, gatun_type_t type, gatun_op_t op, int root,
                           gatun_comm_t comm);
GATUN_API int gatun_barrier(gatun_comm_t comm);

/* The same, started only. Buffers belong to the library until completion. Every request must be waited for or tested until
 * it is complete; that frees it and sets it to NULL. */
GATUN_API int gatun_iallreduce(const void* send, void* recv, size_t count, gatun_type_t type, gatun_op_t op,
                               gatun_comm_t comm, const gatun_call_t* call, gatun_request_t* request);
GATUN_API int gatun_ireduce_scatter(const void* send, void* recv, size_t recv_count, gatun_type_t type, gatun_op_t op,
                                    gatun_comm_t comm, const gatun_call_t* call, gatun_request_t* request);
GATUN_API int gatun_iallgather(const void* send, void* recv, size_t send_count, gatun_type_t type, gatun_comm_t comm,
                               const gatun_call_t* call, gatun_request_t* request);
GATUN_API int gatun_ibroadcast(const void* send, void* recv, size_t count, gatun_type_t type, int root, gatun_comm_t comm,
                               const gatun_call_t* call, gatun_request_t* request);
GATUN_API int gatun_ireduce(const void* send, void* recv, size_t count, gatun_type_t type, gatun_op_t op, int root,
                            gatun_comm_t comm, const gatun_call_t* call, gatun_request_t* request);
GATUN_API int gatun_ibarrier(gatun_comm_t comm, const gatun_call_t* call, gatun_request_t* request);

/* GATUN_IN_PROGRESS, or the operation's final code. wait: timeout_ms < 0 waits until the operation's own deadline. */
GATUN_API int gatun_test(gatun_request_t* request);
GATUN_API int gatun_wait(gatun_request_t* request, int64_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif /* GATUN_GATUN_H_ */
