/* This is decode attention as a C library (libhadal_flash_mla.so), for bindings of other languages.
 *
 * The functions with a `message` return one of hadal_mla_status. If that is not HADAL_MLA_OK, `message` gets
 * a line that names the field, its value and what is allowed (cut to message_size, always terminated). No
 * function allocates device memory or synchronises, and every launch can be captured in a CUDA graph.
 * Launches go to the calling thread's current device. A `stream` is a cudaStream_t or CUstream.
 *
 * A process may use only one GPU, because the kernels keep the properties of the first one. */
#ifndef HADAL_CAPI_FLASH_MLA_H
#define HADAL_CAPI_FLASH_MLA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HADAL_MLA_ABI 1
#define HADAL_MLA_PAGE 64     /* tokens per page of the cache */
#define HADAL_MLA_ROW_DIM 576 /* of queries and records */
#define HADAL_MLA_OUT_DIM 512
#define HADAL_MLA_MAX_HEADS 128 /* query heads of a KV head */

enum hadal_mla_status { HADAL_MLA_OK = 0, HADAL_MLA_INVALID = 1, HADAL_MLA_FAILED = 2 };

/* Names the format of a record of the cache. Queries and outputs are bfloat16, but float16 with
 * HADAL_MLA_F16. */
enum hadal_mla_cache {
  HADAL_MLA_BF16 = 0, /* 576 bfloat16 */
  HADAL_MLA_F16 = 1,  /* 576 float16 */
  HADAL_MLA_E4M3_PER_128 =
      2, /* 512 e4m3 codes, 4 float32 scales (of 128 codes each), 64 bfloat16: 656 bytes */
  HADAL_MLA_E4M3_PER_TOKEN = 3, /* the same with four equal scales */
  HADAL_MLA_E5M2 = 4            /* 576 e5m2 */
};

typedef struct hadal_mla_shape {
  int64_t num_seqs;     /* 1 to 16384, and times q_len / 8 or so no more */
  int32_t q_len;        /* query tokens per sequence, 1 or more */
  int32_t num_heads;    /* query heads, 1 to 128 for each KV head */
  int32_t num_kv_heads; /* divides num_heads; query head h reads KV head h / (num_heads / num_kv_heads) */
  int32_t cache;        /* hadal_mla_cache; FP8 caches have one KV head */
  int32_t causal;       /* query token t attends to len - q_len + 1 + t keys, else all len */
  int32_t num_sms;      /* of the device, from hadal_mla_device */
  int64_t
      most_keys; /* no length is expected above it (the width of a page table); 0: not known. Any value gives
                    right results, but it selects kernels, so plan and decode need the same value. */
} hadal_mla_shape;

typedef struct hadal_mla_decode_args {
  hadal_mla_shape shape;     /* the one that the plan was made for */
  const void* q;             /* [num_kv_heads, num_seqs, q_len, group, 576], dense, 16-byte aligned */
  void* out;                 /* [num_kv_heads, num_seqs, q_len, group, 512], dense, 16-byte aligned */
  float* lse;                /* [num_seqs, num_heads, q_len], natural log, +inf without keys */
  const void* pool;          /* [pages, 64, num_kv_heads] records, 16-byte aligned; null: no page exists */
  int64_t page_stride;       /* bytes, multiples of 16; FP8 records are dense */
  int64_t record_stride;     /* from token to token */
  int64_t head_stride;       /* from KV head to KV head */
  const int32_t* page_table; /* [num_seqs, page_table_stride]; entries past a length are never followed;
                              null: no column */
  int64_t page_table_stride;
  float softmax_scale; /* above 0 */
  void* plan;          /* hadal_mla_plan filled it; a launch uses its counters, so one stream at a time */
  void* scratch;
} hadal_mla_decode_args;

int hadal_mla_abi(void); /* HADAL_MLA_ABI of the library */
const char* hadal_mla_version(void);

/* Checks that the device can run the kernels (Hopper), and that this process has used no other device. */
int hadal_mla_device(int device, int32_t* num_sms, char* message, size_t message_size);

/* Returns the bytes of the two buffers that the caller allocates (device memory, 256-byte aligned, contents
 * arbitrary). Their sizes and layouts depend on every field of the shape, so hadal_mla_plan and
 * hadal_mla_decode need an equal shape, which is not checked. */
int hadal_mla_workspace(const hadal_mla_shape* shape, size_t* plan_bytes, size_t* scratch_bytes,
                        char* message, size_t message_size);

/* Divides the work of a batch, once for all layers that attend with these lengths ([num_seqs] int32, on the
 * device, the number of keys for a sequence's last query token). Only this function reads the lengths.
 * hadal_mla_decode must get an equal shape, including most_keys and num_sms; with another shape it reads the
 * plan by another layout, without an error. */
int hadal_mla_plan(const hadal_mla_shape* shape, const int32_t* cache_seqlens, void* plan, void* stream,
                   char* message, size_t message_size);

int hadal_mla_decode(const hadal_mla_decode_args* args, void* stream, char* message, size_t message_size);

#ifdef __cplusplus
}
#endif

#endif
