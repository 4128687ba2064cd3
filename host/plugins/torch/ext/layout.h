// How tensors become the flat runs of elements that Gatun moves.
//
// A contiguous tensor of a type that Gatun has is its own buffer. Everything else (strided, several tensors in one
// operation, 16-bit integers, tensors of a device) goes through a buffer in host memory: packed before, unpacked after.
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gatun/gatun.h"
#include "host/plugins/torch/ext/compat.h"

namespace gatun_torch {

struct Element {
  gatun_type_t type;           // what Gatun adds
  at::ScalarType dtype;        // what the buffer holds
  int per_tensor_element = 1;  // 2 for complex numbers: the buffer has their parts
};

// How elements of this type are reduced by this operator; nothing if Gatun does not do it. Booleans: sum is "or", product
// is "and". Integers of 16 bits travel as 32.
struct Reduction {
  Element element;
  gatun_op_t op;
};
std::optional<Reduction> reduction_of(at::ScalarType dtype, c10d::ReduceOp::RedOpType op);

// True if the tensor's memory is the buffer itself.
bool is_flat(const at::Tensor& tensor, at::ScalarType buffer_dtype);

// One buffer in host memory with the tensors one after another, converted to the buffer's type.
at::Tensor pack(at::TensorList tensors, at::ScalarType buffer_dtype);
// An empty one of that many elements; pinned when it serves a tensor of a device.
at::Tensor make_buffer(int64_t elements, at::ScalarType dtype, const at::Tensor& serves);
void unpack(const at::Tensor& buffer, at::TensorList tensors);

int64_t elements_of(at::TensorList tensors);

// The same number on all ranks if and only if they call the same operation over the same number of tensors of the same
// lengths and types: [4] does not match [2, 2].
uint64_t fingerprint(c10d::OpType operation, at::TensorList tensors);

}  // namespace gatun_torch
