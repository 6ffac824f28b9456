// Implements streams, events, graphs and profiler ranges.
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include "tensor/cuda.h"
#include "tensor/cuda_status.h"

namespace hadal {
namespace {

cudaEvent_t to_event(void* native) {
  return static_cast<cudaEvent_t>(native);
}

}  // namespace

// A handle that cannot be destroyed belongs to a broken context, so the error is ignored.
void CudaStreamTraits::destroy(void* native) {
  cudaStreamDestroy(static_cast<cudaStream_t>(native));
}
void CudaEventTraits::destroy(void* native) {
  cudaEventDestroy(to_event(native));
}
void CudaGraphTraits::destroy(void* native) {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(native));
}

CudaEvent::CudaEvent(bool timing) {
  cudaEvent_t event = nullptr;
  HADAL_CUDA_STATUS(
      cudaEventCreateWithFlags(&event, cudaEventBlockingSync | (timing ? 0U : cudaEventDisableTiming)));
  handle_ = CudaHandle<CudaEventTraits>(event);
}

void CudaEvent::record(StreamHandle stream) {
  HADAL_CUDA_STATUS(cudaEventRecord(to_event(native()), to_cuda(stream)));
}

void CudaEvent::wait() const {
  HADAL_CUDA_STATUS(cudaEventSynchronize(to_event(native())));
}

float CudaEvent::ms_since(const CudaEvent& begin) const {
  float ms = 0.0F;
  HADAL_CUDA_STATUS(cudaEventElapsedTime(&ms, to_event(begin.native()), to_event(native())));
  return ms;
}

CudaStream::CudaStream() {
  cudaStream_t stream = nullptr;
  HADAL_CUDA_STATUS(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  handle_ = CudaHandle<CudaStreamTraits>(stream);
}

void synchronize_stream(StreamHandle stream) {
  HADAL_CUDA_STATUS(cudaStreamSynchronize(to_cuda(stream)));
}

bool is_capturing(StreamHandle stream) {
  cudaStreamCaptureStatus status{};
  HADAL_CUDA_STATUS(cudaStreamIsCapturing(to_cuda(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

void CudaStream::synchronize() const {
  synchronize_stream(handle());
}

void CudaStream::wait(const CudaEvent& event) {
  HADAL_CUDA_STATUS(cudaStreamWaitEvent(to_cuda(handle()), to_event(event.native()), 0));
}

// The capture mode is thread-local, so that work of other threads during the capture (pinned allocations of a
// server, for example) does not break it.
CudaGraph CudaGraph::capture(CudaStream& stream, const std::function<void()>& work) {
  const cudaStream_t native = to_cuda(stream.handle());
  HADAL_CUDA_STATUS(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(native, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  HADAL_CUDA_STATUS(cudaStreamEndCapture(native, &graph));
  CudaGraph captured;
  cudaGraphExec_t exec = nullptr;
  const cudaError_t listed = cudaGraphGetNodes(graph, nullptr, &captured.num_nodes_);
  const cudaError_t instantiated = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  if (instantiated == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfDeviceMemory(0, cuda_free_bytes());
  }
  HADAL_CUDA_STATUS(listed);
  HADAL_CUDA_STATUS(instantiated);
  captured.handle_ = CudaHandle<CudaGraphTraits>(exec);
  HADAL_CUDA_STATUS(cudaGraphUpload(exec, native));
  return captured;
}

void CudaGraph::launch(StreamHandle stream) const {
  HADAL_CUDA_STATUS(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_.native()), to_cuda(stream)));
}

NvtxRange::NvtxRange(const char* name) {
  nvtxRangePushA(name);
}

NvtxRange::~NvtxRange() {
  nvtxRangePop();
}

}  // namespace hadal
