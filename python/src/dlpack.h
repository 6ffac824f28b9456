/* The part of the DLPack interface (version 0.x capsules, "dltensor") that a reader of tensors needs. */
#ifndef HADAL_DLPACK_H
#define HADAL_DLPACK_H

#include <stdint.h>

enum { DLPACK_CUDA = 2 };                                                      /* device types */
enum { DLPACK_INT = 0, DLPACK_UINT = 1, DLPACK_FLOAT = 2, DLPACK_BFLOAT = 4 }; /* type codes */

typedef struct {
  int32_t device_type;
  int32_t device_id;
} dlpack_device;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} dlpack_type;

typedef struct {
  void* data; /* of the first element minus byte_offset */
  dlpack_device device;
  int32_t ndim;
  dlpack_type dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; null: dense, last dimension fastest */
  uint64_t byte_offset;
} dlpack_tensor;

/* What the capsule points to. A capsule that nobody consumed frees it by itself. */
typedef struct dlpack_managed_tensor {
  dlpack_tensor tensor;
  void* manager;
  void (*deleter)(struct dlpack_managed_tensor* self);
} dlpack_managed_tensor;

#endif
