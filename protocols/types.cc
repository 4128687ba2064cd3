#include "protocols/types.h"

namespace gatun {

const char* name(Type type) {
  switch (type) {
    case Type::kI8: return "i8";
    case Type::kU8: return "u8";
    case Type::kI32: return "i32";
    case Type::kU32: return "u32";
    case Type::kI64: return "i64";
    case Type::kU64: return "u64";
    case Type::kF16: return "f16";
    case Type::kF32: return "f32";
    case Type::kF64: return "f64";
    case Type::kBF16: return "bf16";
    case Type::kE4M3: return "f8e4m3";
    case Type::kE5M2: return "f8e5m2";
  }
  return "unknown type";
}

const char* name(Op op) {
  switch (op) {
    case Op::kSum: return "sum";
    case Op::kProd: return "prod";
    case Op::kMax: return "max";
    case Op::kMin: return "min";
    case Op::kAvg: return "avg";
  }
  return "unknown op";
}

const char* name(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce: return "allreduce";
    case Collective::kReduceScatter: return "reduce_scatter";
    case Collective::kAllGather: return "allgather";
    case Collective::kBroadcast: return "broadcast";
    case Collective::kReduce: return "reduce";
    case Collective::kBarrier: return "barrier";
  }
  return "unknown collective";
}

}  // namespace gatun
