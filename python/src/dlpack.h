/* Declares the part of the DLPack interface that a reader of tensors needs: capsules named "dltensor", and
 * the table of C functions that newer libraries offer as __dlpack_c_exchange_api__ (since version 1.3). */
#ifndef HADAL_DLPACK_H
#define HADAL_DLPACK_H

#include <stdint.h>

enum { DLPACK_CPU = 1, DLPACK_CUDA = 2 };                                      /* device types */
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
  void* data; /* address of the first element minus byte_offset */
  dlpack_device device;
  int32_t ndim;
  dlpack_type dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; null: dense, last dimension fastest */
  uint64_t byte_offset;
} dlpack_tensor;

/* A capsule points to this. A capsule that was not consumed frees it when it is destroyed. */
typedef struct dlpack_managed_tensor {
  dlpack_tensor tensor;
  void* manager;
  void (*deleter)(struct dlpack_managed_tensor* self);
} dlpack_managed_tensor;

/* The table is in a capsule named "dlpack_exchange_api" on the tensors' type. */
enum { DLPACK_EXCHANGE_MAJOR = 1 };
typedef struct dlpack_exchange_header {
  uint32_t major, minor; /* the layout of the rest is known only for DLPACK_EXCHANGE_MAJOR */
  struct dlpack_exchange_header* older;
} dlpack_exchange_header;
typedef struct {
  dlpack_exchange_header header;
  void (*not_used[3])(void);
  /* Fills `tensor`, which lives as long as the object does; -1 with an exception set. May be null. */
  int (*borrow)(void* object, dlpack_tensor* tensor);
  int (*current_stream)(int32_t device_type, int32_t device_id, void** stream);
} dlpack_exchange;

#endif
