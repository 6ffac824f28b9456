#include "tensors.h"

#include <stdarg.h>
#include <stdio.h>

int complain(PyObject* kind, const char* format, ...) {
  char text[MESSAGE_SIZE];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  PyErr_SetString(kind, text);
  return 0;
}

const dlpack_exchange* exchange_of(PyObject* object) {
  static PyTypeObject* known = NULL;
  static const dlpack_exchange* table = NULL;
  PyTypeObject* type = Py_TYPE(object);
  if (type == known) return table;
  PyObject* capsule = PyObject_GetAttrString((PyObject*)type, "__dlpack_c_exchange_api__");
  const dlpack_exchange* found = NULL;
  if (capsule != NULL && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
    found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (found->header.major != DLPACK_EXCHANGE_MAJOR || found->borrow == NULL) found = NULL;
  }
  PyErr_Clear();
  Py_XDECREF(capsule); /* the type keeps it */
  Py_INCREF((PyObject*)type);
  Py_XDECREF((PyObject*)known);
  known = type;
  table = found;
  return found;
}

/* Returns the name of the tensor's device as its library writes it, or null if the device is not known or is
 * a CUDA device. */
static PyObject* device_elsewhere(PyObject* object) {
  PyObject* device = PyObject_GetAttrString(object, "device");
  PyObject* text = device != NULL ? PyObject_Str(device) : NULL;
  Py_XDECREF(device);
  PyObject* cuda = text != NULL ? PyUnicode_FromString("cuda") : NULL;
  const int elsewhere = cuda != NULL && PyUnicode_Tailmatch(text, cuda, 0, 4, -1) == 0;
  Py_XDECREF(cuda);
  PyErr_Clear();
  if (elsewhere) return text;
  Py_XDECREF(text);
  return NULL;
}

/* Turns the exception that is set into one that names the argument. */
static int complain_of_object(PyObject* object, const char* name) {
  PyObject *kind, *value, *trace;
  PyErr_Fetch(&kind, &value, &trace);
  PyObject* device = device_elsewhere(object);
  PyObject* type_name = PyObject_GetAttrString((PyObject*)Py_TYPE(object), "__name__");
  if (device != NULL) {
    PyErr_Format(PyExc_ValueError, "%s: is on %S; allowed: a CUDA device", name, device);
  } else if (type_name != NULL) {
    PyErr_Format(PyExc_TypeError, "%s: is a %S without a DLPack tensor (%S); allowed: a CUDA tensor", name,
                 type_name, value != NULL ? value : Py_None);
  }
  Py_XDECREF(device);
  Py_XDECREF(type_name);
  Py_XDECREF(kind);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return 0;
}

int open_tensor(PyObject* object, const char* name, reader* r) {
  r->capsule = NULL;
  const dlpack_exchange* exchange = exchange_of(object);
  if (exchange != NULL) {
    r->tensor = &r->borrowed;
    return exchange->borrow(object, &r->borrowed) == 0 ? 1 : complain_of_object(object, name);
  }
  PyObject* method = PyObject_GetAttrString(object, "__dlpack__");
  if (method == NULL) return complain_of_object(object, name);
  PyObject* none = PyTuple_New(0);
  PyObject* stream = Py_BuildValue("{si}", "stream", -1);
  if (none != NULL && stream != NULL) r->capsule = PyObject_Call(method, none, stream);
  Py_DECREF(method);
  Py_XDECREF(none);
  Py_XDECREF(stream);
  if (r->capsule == NULL) return complain_of_object(object, name);
  if (!PyCapsule_IsValid(r->capsule, "dltensor")) {
    return complain(PyExc_TypeError, "%s: __dlpack__ returned no capsule named \"dltensor\"", name);
  }
  r->tensor = &((const dlpack_managed_tensor*)PyCapsule_GetPointer(r->capsule, "dltensor"))->tensor;
  return 1;
}

void* address_of(const dlpack_tensor* tensor) {
  return tensor->data == NULL ? NULL : (char*)tensor->data + tensor->byte_offset;
}

int64_t stride_of(const dlpack_tensor* tensor, int dimension) {
  if (tensor->strides != NULL) return tensor->strides[dimension];
  int64_t stride = 1;
  for (int d = tensor->ndim - 1; d > dimension; --d) stride *= tensor->shape[d];
  return stride;
}

/* Writes the shape into `text`, for example "[2, 1, 16, 576]", and returns it. */
static const char* shape_text(const dlpack_tensor* tensor, char* text, size_t size) {
  size_t used = (size_t)snprintf(text, size, "[");
  for (int d = 0; d < tensor->ndim && used < size; ++d) {
    used +=
        (size_t)snprintf(text + used, size - used, d == 0 ? "%lld" : ", %lld", (long long)tensor->shape[d]);
  }
  if (used < size) snprintf(text + used, size - used, "]");
  return text;
}

const char* type_text(dlpack_type type, char* text, size_t size) {
  const char* name = type.code == DLPACK_INT      ? "int"
                     : type.code == DLPACK_UINT   ? "uint"
                     : type.code == DLPACK_FLOAT  ? "float"
                     : type.code == DLPACK_BFLOAT ? "bfloat"
                                                  : NULL;
  if (name != NULL) {
    snprintf(text, size, "%s%d", name, type.bits);
  } else {
    snprintf(text, size, "DLPack type %d of %d bits", type.code, type.bits);
  }
  return text;
}

int has_type(const dlpack_tensor* tensor, int code, int bits) {
  return tensor->dtype.code == code && tensor->dtype.bits == bits && tensor->dtype.lanes == 1;
}

int check_tensor(const dlpack_tensor* tensor, const char* name, int ndim, const char* dimensions,
                 int32_t device) {
  char text[160];
  if (tensor->ndim != ndim) {
    return complain(PyExc_ValueError, "%s: shape is %s; allowed: %s", name,
                    shape_text(tensor, text, sizeof text), dimensions);
  }
  if (tensor->device.device_type == DLPACK_CPU) {
    return complain(PyExc_ValueError, "%s: is on cpu; allowed: a CUDA device", name);
  }
  if (tensor->device.device_type != DLPACK_CUDA) {
    return complain(PyExc_ValueError, "%s: is on a device of DLPack's type %d; allowed: a CUDA device", name,
                    (int)tensor->device.device_type);
  }
  if (device >= 0 && tensor->device.device_id != device) {
    return complain(PyExc_ValueError, "%s: device is cuda:%d; allowed: cuda:%d, where q is", name,
                    (int)tensor->device.device_id, (int)device);
  }
  if (tensor->shape[ndim - 1] > 1 && stride_of(tensor, ndim - 1) != 1) {
    return complain(PyExc_ValueError, "%s: stride of the last dimension is %lld; allowed: 1", name,
                    (long long)stride_of(tensor, ndim - 1));
  }
  return 1;
}

int check_size(const dlpack_tensor* tensor, const char* name, int dimension, int64_t size, const char* why) {
  if (tensor->shape[dimension] == size) return 1;
  char text[160];
  return complain(PyExc_ValueError, "%s: size of dimension %d is %lld (shape %s); allowed: %lld%s", name,
                  dimension, (long long)tensor->shape[dimension], shape_text(tensor, text, sizeof text),
                  (long long)size, why);
}

int check_type(const dlpack_tensor* tensor, const char* name, int code, int bits, const char* allowed) {
  if (has_type(tensor, code, bits)) return 1;
  char text[64];
  return complain(PyExc_TypeError, "%s: dtype is %s; allowed: %s", name,
                  type_text(tensor->dtype, text, sizeof text), allowed);
}
