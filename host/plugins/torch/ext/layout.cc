#include "host/plugins/torch/ext/layout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

namespace gatun_torch {
namespace {

std::optional<Element> element_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return Element{GATUN_F32, dtype};
    case at::kDouble: return Element{GATUN_F64, dtype};
    case at::kHalf: return Element{GATUN_F16, dtype};
    case at::kBFloat16: return Element{GATUN_BF16, dtype};
    case at::kChar: return Element{GATUN_I8, dtype};
    case at::kByte: return Element{GATUN_U8, dtype};
    case at::kBool: return Element{GATUN_U8, dtype};
    case at::kShort: return Element{GATUN_I32, at::kInt};
    case at::kInt: return Element{GATUN_I32, dtype};
    case at::kLong: return Element{GATUN_I64, dtype};
    case at::kComplexFloat: return Element{GATUN_F32, at::kFloat, 2};
    case at::kComplexDouble: return Element{GATUN_F64, at::kDouble, 2};
#if GATUN_TORCH_AT_LEAST(2, 1)
    case at::kFloat8_e4m3fn: return Element{GATUN_F8E4M3, dtype};
    case at::kFloat8_e5m2: return Element{GATUN_F8E5M2, dtype};
#endif
#if GATUN_TORCH_AT_LEAST(2, 3)
    case at::kUInt16: return Element{GATUN_I32, at::kInt};
    case at::kUInt32: return Element{GATUN_U32, dtype};
    case at::kUInt64: return Element{GATUN_U64, dtype};
#endif
    default: return std::nullopt;
  }
}

std::optional<gatun_op_t> op_of(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM: return GATUN_SUM;
    case c10d::ReduceOp::AVG: return GATUN_AVG;
    case c10d::ReduceOp::PRODUCT: return GATUN_PROD;
    case c10d::ReduceOp::MIN: return GATUN_MIN;
    case c10d::ReduceOp::MAX: return GATUN_MAX;
    default: return std::nullopt;
  }
}

// The tensor as the buffer sees it: complex numbers are pairs.
at::Tensor as_parts(const at::Tensor& tensor, at::ScalarType buffer_dtype) {
  return tensor.is_complex() && !at::isComplexType(buffer_dtype) ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

uint64_t mix(uint64_t hash, uint64_t value) {  // the finaliser of splitmix64
  hash += value + 0x9e3779b97f4a7c15ull;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ull;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebull;
  return hash ^ (hash >> 31);
}

}  // namespace

std::optional<Reduction> reduction_of(at::ScalarType dtype, c10d::ReduceOp::RedOpType op) {
  const auto element = element_of(dtype);
  auto gatun_op = op_of(op);
  if (!element || !gatun_op) {
    return std::nullopt;
  }
  if (dtype == at::kBool) {
    if (*gatun_op == GATUN_AVG) {
      return std::nullopt;
    }
    gatun_op = *gatun_op == GATUN_SUM ? GATUN_MAX : *gatun_op == GATUN_PROD ? GATUN_MIN : *gatun_op;
  }
  if (element->per_tensor_element != 1 && *gatun_op != GATUN_SUM && *gatun_op != GATUN_AVG) {
    return std::nullopt;
  }
  return Reduction{*element, *gatun_op};
}

bool is_flat(const at::Tensor& tensor, at::ScalarType buffer_dtype) {
  const bool same_bits = tensor.scalar_type() == buffer_dtype ||
                         (tensor.is_complex() && c10::toRealValueType(tensor.scalar_type()) == buffer_dtype);
  return same_bits && tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor make_buffer(int64_t elements, at::ScalarType dtype, const at::Tensor& serves) {
  return at::empty({elements}, at::TensorOptions().dtype(dtype).pinned_memory(serves.is_cuda()));
}

at::Tensor pack(at::TensorList tensors, at::ScalarType buffer_dtype) {
  int64_t elements = 0;
  for (const auto& tensor : tensors) {
    elements += as_parts(tensor, buffer_dtype).numel();
  }
  auto buffer = make_buffer(elements, buffer_dtype, tensors.front());
  int64_t at = 0;
  for (const auto& tensor : tensors) {
    const auto parts = as_parts(tensor, buffer_dtype);
    buffer.narrow(0, at, parts.numel()).view(parts.sizes()).copy_(parts);
    at += parts.numel();
  }
  return buffer;
}

void unpack(const at::Tensor& buffer, at::TensorList tensors) {
  int64_t at = 0;
  for (const auto& tensor : tensors) {
    const bool pairs = tensor.is_complex() && !buffer.is_complex();
    const int64_t elements = tensor.numel() * (pairs ? 2 : 1);
    const auto slice = buffer.narrow(0, at, elements);
    if (pairs) {
      tensor.copy_(at::view_as_complex(slice.view({tensor.numel(), 2})).view(tensor.sizes()));
    } else {
      tensor.copy_(slice.view(tensor.sizes()));
    }
    at += elements;
  }
}

int64_t elements_of(at::TensorList tensors) {
  int64_t elements = 0;
  for (const auto& tensor : tensors) {
    elements += tensor.numel();
  }
  return elements;
}

uint64_t fingerprint(c10d::OpType operation, at::TensorList tensors) {
  uint64_t hash = mix(static_cast<uint64_t>(operation), tensors.size());
  for (const auto& tensor : tensors) {
    hash = mix(mix(hash, static_cast<uint64_t>(tensor.numel())), static_cast<uint64_t>(tensor.scalar_type()));
  }
  return hash;
}

}  // namespace gatun_torch
