// A tool for NVTX, as Nsight Systems is one: a library that NVTX loads where NVTX_INJECTION64_PATH names it. It writes
// the name of every range into the file that NVTX_TOOL_OUTPUT names, indented by how deep it lies.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <nvtx3/nvToolsExt.h>

namespace {

std::FILE* output = nullptr;
int depth = 0;
int only_domain = 0;

nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  if (output != nullptr) std::fprintf(output, "domain %s\n", name);
  return reinterpret_cast<nvtxDomainHandle_t>(&only_domain);
}
int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* attributes) {
  if (output != nullptr) std::fprintf(output, "%*s%s\n", 2 * depth, "", attributes->message.ascii);
  return depth++;
}
int NVTX_API pop(nvtxDomainHandle_t) {
  if (output != nullptr) std::fflush(output);
  return --depth;
}

}  // namespace

extern "C" NVTX_DYNAMIC_EXPORT int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const char* const path = std::getenv("NVTX_TOOL_OUTPUT");
  output =
      path == nullptr ? nullptr : std::fopen((std::string(path) + "." + std::getenv("SHARDPROOF_RANK")).c_str(), "w");
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create_domain);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}
