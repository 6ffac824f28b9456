/* hadal._flash_mla: reads tensors through DLPack, checks them, and calls libhadal_flash_mla. All calls
 * keep the GIL, because they take microseconds. The file is compiled against the limited API, so that one
 * binary serves every CPython from 3.9 on. */
#include <stdio.h>
#include <string.h>

#include "flash_mla.h"
#include "tensors.h"

/* Raises the exception that belongs to a status of the library, and returns null. */
static PyObject* raise_status(int status, const char* message) {
  PyErr_SetString(status == HADAL_MLA_INVALID ? PyExc_ValueError : PyExc_RuntimeError, message);
  return NULL;
}

/* Sets the cache's format, address and strides in bytes. The stride of a dimension of size 1 may have any
 * value in the tensor, so it is replaced. */
static int read_cache(const dlpack_tensor* cache, int fp8, int per_token, hadal_mla_decode_args* args) {
  const int64_t width = cache->shape[3];
  if (fp8) {
    if (!has_type(cache, DLPACK_UINT, 8) && !has_type(cache, DLPACK_INT, 8)) {
      char text[64];
      return complain(PyExc_TypeError,
                      "k_cache: dtype is %s; allowed with is_fp8_kvcache: one byte (uint8, float8)",
                      type_text(cache->dtype, text, sizeof text));
    }
    if (width != 656 && width != HADAL_MLA_ROW_DIM) {
      return complain(
          PyExc_ValueError,
          "k_cache: last dimension is %lld; allowed with is_fp8_kvcache: 656 (512 e4m3 codes, 4 float32 "
          "scales, 64 bfloat16) or %d (e5m2)",
          (long long)width, HADAL_MLA_ROW_DIM);
    }
    args->shape.cache = width != 656 ? HADAL_MLA_E5M2
                        : per_token  ? HADAL_MLA_E4M3_PER_TOKEN
                                     : HADAL_MLA_E4M3_PER_128;
    if (!check_size(cache, "k_cache", 2, 1, " KV head with is_fp8_kvcache")) return 0;
  } else if (!check_size(cache, "k_cache", 3, HADAL_MLA_ROW_DIM, "")) {
    return 0;
  }
  const int64_t bytes = cache->dtype.bits / 8;
  const int64_t heads = cache->shape[2];
  args->head_stride = heads > 1 ? stride_of(cache, 2) * bytes : width * bytes;
  args->record_stride = stride_of(cache, 1) * bytes;
  args->page_stride =
      cache->shape[0] > 1 ? stride_of(cache, 0) * bytes : HADAL_MLA_PAGE * args->record_stride;
  args->pool = cache->shape[0] > 0 ? address_of(cache) : NULL;
  if ((uintptr_t)args->pool % 16 != 0) {
    return complain(PyExc_ValueError, "k_cache: address is %p; allowed: addresses that 16 divides",
                    args->pool);
  }
  const int64_t strides[3] = {args->page_stride, args->record_stride, args->head_stride};
  for (int d = 0; d < 3; ++d) {
    const int64_t least = fp8 && d < 2 ? (d == 0 ? HADAL_MLA_PAGE : 1) * width : strides[d];
    if (strides[d] <= 0 || strides[d] % 16 != 0 || strides[d] != least) {
      return complain(PyExc_ValueError, "k_cache: stride of dimension %d is %lld bytes; allowed: %s", d,
                      (long long)strides[d], fp8 ? "a dense FP8 cache" : "positive multiples of 16 bytes");
    }
  }
  return 1;
}

enum { Q, CACHE, TABLE, LENGTHS, NUM_TENSORS };

/* Checks everything that does not depend on the tensors' values, and fills in the library's arguments. */
static int check_call(const dlpack_tensor* q, const dlpack_tensor* cache, const dlpack_tensor* table,
                      const dlpack_tensor* lengths, long head_dim_v, double scale, int causal, int fp8,
                      int per_token, hadal_mla_decode_args* args) {
  const int32_t device = q->device.device_id;
  if (!check_tensor(q, "q", 4, "[batch, s_q, h_q, 576]", -1) ||
      !check_tensor(cache, "k_cache", 4, "[num_blocks, 64, h_kv, 576]", device) ||
      !check_tensor(table, "block_table", 2, "[batch, max_blocks]", device) ||
      !check_tensor(lengths, "cache_seqlens", 1, "[batch]", device)) {
    return 0;
  }
  const int is_f16 = has_type(q, DLPACK_FLOAT, 16) && !fp8;
  if (!is_f16 &&
      !check_type(q, "q", DLPACK_BFLOAT, 16, fp8 ? "bfloat16 with is_fp8_kvcache" : "bfloat16, float16")) {
    return 0;
  }
  if (!fp8 && !check_type(cache, "k_cache", q->dtype.code, 16, "that of q (or is_fp8_kvcache)")) return 0;
  if (!check_type(table, "block_table", DLPACK_INT, 32, "int32") ||
      !check_type(lengths, "cache_seqlens", DLPACK_INT, 32, "int32")) {
    return 0;
  }
  for (int d = 0; d < 3; ++d) {
    if (q->shape[d] < 1 || q->shape[d] > 1 << 20) {
      complain(PyExc_ValueError, "q: size of dimension %d is %lld; allowed: 1 to %d", d,
               (long long)q->shape[d], 1 << 20);
      return 0;
    }
  }
  if (!check_size(q, "q", 3, HADAL_MLA_ROW_DIM, "") ||
      !check_size(cache, "k_cache", 1, HADAL_MLA_PAGE, " (tokens per block)") ||
      !check_size(table, "block_table", 0, q->shape[0], ", the batch of q") ||
      !check_size(lengths, "cache_seqlens", 0, q->shape[0], ", the batch of q")) {
    return 0;
  }
  const int64_t heads = q->shape[2];
  const int64_t kv_heads = cache->shape[2];
  if (kv_heads < 1 || heads % kv_heads != 0 || heads / kv_heads > HADAL_MLA_MAX_HEADS) {
    complain(PyExc_ValueError,
             "k_cache: %lld KV heads for the %lld heads of q; allowed: divisors with at most %d heads each",
             (long long)kv_heads, (long long)heads, HADAL_MLA_MAX_HEADS);
    return 0;
  }
  if (head_dim_v != HADAL_MLA_OUT_DIM) {
    complain(PyExc_ValueError, "head_dim_v: is %ld; allowed: %d", head_dim_v, HADAL_MLA_OUT_DIM);
    return 0;
  }
  if (!(scale > 0.0 && scale < 1e30)) {
    complain(PyExc_ValueError, "softmax_scale: is %g; allowed: above 0, finite", scale);
    return 0;
  }

  memset(args, 0, sizeof *args);
  args->shape.num_seqs = q->shape[0];
  args->shape.q_len = (int32_t)q->shape[1];
  args->shape.num_heads = (int32_t)heads;
  args->shape.num_kv_heads = (int32_t)kv_heads;
  args->shape.cache = is_f16 ? HADAL_MLA_F16 : HADAL_MLA_BF16;
  args->shape.causal = causal;
  args->page_table = (const int32_t*)address_of(table);
  args->page_table_stride = table->shape[0] > 1 ? stride_of(table, 0) : table->shape[1];
  args->softmax_scale = (float)scale;
  return read_cache(cache, fp8, per_token, args);
}

/* Reads the two numbers of a call. */
static int read_numbers(PyObject* head_dim, PyObject* softmax_scale, long* head_dim_v, double* scale) {
  *head_dim_v = PyLong_AsLong(head_dim);
  if (PyErr_Occurred()) {
    PyErr_Format(PyErr_ExceptionMatches(PyExc_OverflowError) ? PyExc_ValueError : PyExc_TypeError,
                 "head_dim_v: is %R; allowed: %d", head_dim, HADAL_MLA_OUT_DIM);
    return 0;
  }
  *scale = PyFloat_AsDouble(softmax_scale);
  if (PyErr_Occurred()) {
    PyErr_Format(PyExc_TypeError, "softmax_scale: is %R; allowed: a number above 0, finite", softmax_scale);
    return 0;
  }
  return 1;
}

/* prepare(q, k_cache, block_table, cache_seqlens, head_dim_v, softmax_scale, causal, is_fp8, per_token)
 * -> (arguments of the library as bytes, (batch, s_q, h_q, h_kv, cache kind, causal, device), address of the
 * lengths, current stream (None if only the tensors' library can tell it), number of keys that the table has
 * room for). */
static PyObject* prepare(PyObject* self, PyObject* positional) {
  (void)self;
  static const char* const names[NUM_TENSORS] = {"q", "k_cache", "block_table", "cache_seqlens"};
  PyObject *objects[NUM_TENSORS], *head_dim, *softmax_scale;
  long head_dim_v;
  double scale;
  int causal, fp8, per_token;
  if (!PyArg_ParseTuple(positional, "OOOOOOppp:prepare", &objects[Q], &objects[CACHE], &objects[TABLE],
                        &objects[LENGTHS], &head_dim, &softmax_scale, &causal, &fp8, &per_token) ||
      !read_numbers(head_dim, softmax_scale, &head_dim_v, &scale)) {
    return NULL;
  }
  reader readers[NUM_TENSORS];
  int opened = 0;
  while (opened < NUM_TENSORS && open_tensor(objects[opened], names[opened], &readers[opened])) ++opened;
  hadal_mla_decode_args args;
  PyObject* result = NULL;
  if (opened == NUM_TENSORS &&
      check_call(readers[Q].tensor, readers[CACHE].tensor, readers[TABLE].tensor, readers[LENGTHS].tensor,
                 head_dim_v, scale, causal, fp8, per_token, &args)) {
    const int32_t device = readers[Q].tensor->device.device_id;
    const dlpack_exchange* exchange = exchange_of(objects[Q]);
    void* stream = NULL;
    const int knows = exchange != NULL && exchange->current_stream != NULL;
    if (!knows || exchange->current_stream(DLPACK_CUDA, device, &stream) == 0) {
      result = Py_BuildValue("(y#(LiiiiNi)KNL)", (const char*)&args, (Py_ssize_t)sizeof args,
                             (long long)args.shape.num_seqs, (int)args.shape.q_len, (int)args.shape.num_heads,
                             (int)args.shape.num_kv_heads, (int)args.shape.cache, PyBool_FromLong(causal),
                             (int)device, (unsigned long long)(uintptr_t)address_of(readers[LENGTHS].tensor),
                             knows ? PyLong_FromVoidPtr(stream) : (Py_INCREF(Py_None), Py_None),
                             (long long)readers[TABLE].tensor->shape[1] * HADAL_MLA_PAGE);
    }
  }
  /* A tensor that failed to open may have left a capsule, too. */
  for (int i = 0; i < NUM_TENSORS && i <= opened; ++i) Py_XDECREF(readers[i].capsule);
  return result;
}

/* Reads the library's arguments that prepare() made, and sets the device's number of multiprocessors and the
 * plan's most_keys. The caller sets the buffers. */
static int take_args(const char* bytes, Py_ssize_t size, int num_sms, long long most_keys,
                     hadal_mla_decode_args* args) {
  if (size != (Py_ssize_t)sizeof *args) {
    return complain(PyExc_ValueError, "call: %zd bytes; allowed: the %zu that prepare() returns", size,
                    sizeof *args);
  }
  memcpy(args, bytes, sizeof *args);
  args->shape.num_sms = num_sms;
  args->shape.most_keys = most_keys;
  return 1;
}

/* workspace(call, num_sms, most_keys) -> (bytes of the plan, bytes of the scratch) */
static PyObject* workspace(PyObject* self, PyObject* positional) {
  (void)self;
  const char* bytes;
  Py_ssize_t size;
  int num_sms;
  long long most_keys;
  hadal_mla_decode_args args;
  if (!PyArg_ParseTuple(positional, "y#iL:workspace", &bytes, &size, &num_sms, &most_keys) ||
      !take_args(bytes, size, num_sms, most_keys, &args)) {
    return NULL;
  }
  char message[MESSAGE_SIZE];
  size_t plan_bytes, scratch_bytes;
  const int status = hadal_mla_workspace(&args.shape, &plan_bytes, &scratch_bytes, message, sizeof message);
  if (status != HADAL_MLA_OK) return raise_status(status, message);
  return Py_BuildValue("(KK)", (unsigned long long)plan_bytes, (unsigned long long)scratch_bytes);
}

/* plan(call, num_sms, most_keys, lengths, plan, stream): addresses and a cudaStream_t as integers */
static PyObject* plan(PyObject* self, PyObject* positional) {
  (void)self;
  const char* bytes;
  Py_ssize_t size;
  int num_sms;
  long long most_keys;
  unsigned long long lengths, buffer, stream;
  hadal_mla_decode_args args;
  if (!PyArg_ParseTuple(positional, "y#iLKKK:plan", &bytes, &size, &num_sms, &most_keys, &lengths, &buffer,
                        &stream) ||
      !take_args(bytes, size, num_sms, most_keys, &args)) {
    return NULL;
  }
  char message[MESSAGE_SIZE];
  const int status = hadal_mla_plan(&args.shape, (const int32_t*)(uintptr_t)lengths, (void*)(uintptr_t)buffer,
                                    (void*)(uintptr_t)stream, message, sizeof message);
  if (status != HADAL_MLA_OK) return raise_status(status, message);
  Py_RETURN_NONE;
}

/* decode(call, num_sms, most_keys, q, out, lse, plan, scratch, stream): addresses and a cudaStream_t as
 * integers */
static PyObject* decode(PyObject* self, PyObject* positional) {
  (void)self;
  const char* bytes;
  Py_ssize_t size;
  int num_sms;
  long long most_keys;
  unsigned long long q, out, lse, buffer, scratch, stream;
  hadal_mla_decode_args args;
  if (!PyArg_ParseTuple(positional, "y#iLKKKKKK:decode", &bytes, &size, &num_sms, &most_keys, &q, &out, &lse,
                        &buffer, &scratch, &stream) ||
      !take_args(bytes, size, num_sms, most_keys, &args)) {
    return NULL;
  }
  args.q = (const void*)(uintptr_t)q;
  args.out = (void*)(uintptr_t)out;
  args.lse = (float*)(uintptr_t)lse;
  args.plan = (void*)(uintptr_t)buffer;
  args.scratch = (void*)(uintptr_t)scratch;
  char message[MESSAGE_SIZE];
  const int status = hadal_mla_decode(&args, (void*)(uintptr_t)stream, message, sizeof message);
  if (status != HADAL_MLA_OK) return raise_status(status, message);
  Py_RETURN_NONE;
}

/* multiprocessors(device) -> int; raises an exception if the device cannot run the kernels */
static PyObject* multiprocessors(PyObject* self, PyObject* positional) {
  (void)self;
  int device;
  if (!PyArg_ParseTuple(positional, "i:multiprocessors", &device)) return NULL;
  char message[MESSAGE_SIZE];
  int32_t num_sms;
  const int status = hadal_mla_device(device, &num_sms, message, sizeof message);
  if (status != HADAL_MLA_OK) return raise_status(status, message);
  return PyLong_FromLong(num_sms);
}

static PyMethodDef methods[] = {{"prepare", prepare, METH_VARARGS, NULL},
                                {"workspace", workspace, METH_VARARGS, NULL},
                                {"plan", plan, METH_VARARGS, NULL},
                                {"decode", decode, METH_VARARGS, NULL},
                                {"multiprocessors", multiprocessors, METH_VARARGS, NULL},
                                {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_flash_mla", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__flash_mla(void) {
  if (hadal_mla_abi() != HADAL_MLA_ABI) {
    complain(PyExc_ImportError,
             "libhadal_flash_mla has interface %d; allowed: %d, which this binding was built for",
             hadal_mla_abi(), HADAL_MLA_ABI);
    return NULL;
  }
  PyObject* made = PyModule_Create(&module);
  if (made != NULL && PyModule_AddStringConstant(made, "version", hadal_mla_version()) != 0) {
    Py_DECREF(made);
    return NULL;
  }
  return made;
}
