/* Reads the tensors that Python passes, through DLPack, and checks them. A function that returns an
 * int returns 1, or 0 with a Python exception set, which names the argument. */
#ifndef HADAL_TENSORS_H
#define HADAL_TENSORS_H

#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "dlpack.h"

enum { MESSAGE_SIZE = 512 };

/* Sets a Python exception as printf would (PyErr_Format supports fewer conversions); returns 0. */
int complain(PyObject* kind, const char* format, ...);

/* Holds a tensor while it is read. */
typedef struct {
  const dlpack_tensor* tensor;
  dlpack_tensor borrowed;
  PyObject* capsule; /* null when borrowed */
} reader;

/* Returns the exchange table of the object's type, or null. The table of the last type is cached. */
const dlpack_exchange* exchange_of(PyObject* object);
/* Opens the tensor with the exchange table if there is one, otherwise with __dlpack__; it waits for no
 * stream. The caller releases r->capsule, also after an error. */
int open_tensor(PyObject* object, const char* name, reader* r);

/* Returns the address of the first element; null for a tensor without elements. */
void* address_of(const dlpack_tensor* tensor);
/* Returns the stride in elements. */
int64_t stride_of(const dlpack_tensor* tensor, int dimension);
/* Tells whether the type has this DLPACK_… code and these bits. */
int has_type(const dlpack_tensor* tensor, int code, int bits);

/* Writes the type's name into `text`, for example "bfloat16", and returns it. */
const char* type_text(dlpack_type type, char* text, size_t size);

/* Checks the rank, the device and that the stride of the last dimension is 1. `dimensions` is the text of the
 * allowed shape; a device below 0 stands for any CUDA device. */
int check_tensor(const dlpack_tensor* tensor, const char* name, int ndim, const char* dimensions,
                 int32_t device);
int check_size(const dlpack_tensor* tensor, const char* name, int dimension, int64_t size, const char* why);
int check_type(const dlpack_tensor* tensor, const char* name, int code, int bits, const char* allowed);

#endif
