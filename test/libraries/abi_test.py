"""hooks.def's library rows and our declarations against the libraries' own headers: abi_test.py TOP CUDNN-INCLUDE CUBLAS-INCLUDE

Every row exists with the signature of its family; every call that runs kernels is a row, or passed through with a reason; the
numbers that we write down are the headers'. Status 4 where cuBLAS' headers are not there (scripts/setup test fetches them)."""
import pathlib
import re
import sys

top, cudnn, cublas = (pathlib.Path(a) for a in sys.argv[1:4])
failures = []


def check(good, what):
    if not good:
        failures.append(what)


def text_of(*paths):
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", "\n".join(p.read_text(errors="replace") for p in paths), flags=re.S)


table = text_of(top / "hooklib/hooks.def")
blas_rows = re.findall(r"^SLUICE_BLAS\((\w+), (\w+), (\w+), (\w+), (\w+)\)", table, re.M)
rows = {r[0] for r in blas_rows} | set(re.findall(r"^SLUICE_(?:LIB|CUDNN)\((\w+)", table, re.M))
passed = re.findall(r"^SLUICE_LIB_PASS_PREFIX\((\w+),", table, re.M)


def covered(name):
    return name in rows or any(name.startswith(p) for p in passed)


# --- cuDNN: every function that takes a handle and is no question or setting ---
headers = text_of(*(cudnn / f"cudnn_{part}.h" for part in ("graph", "ops", "cnn", "adv")))
functions = dict(re.findall(r"CUDNNWINAPI\s+(cudnn\w+)\s*\(([^)]*)\)", headers))
for name, parameters in functions.items():
    runs = parameters.split(",")[0].strip().startswith(("cudnnHandle_t", "const cudnnHandle_t"))
    if runs and not re.match(r"cudnn(Get|SetStream|Create$|Destroy$|Query|RNNSet|RNNGet|DropoutGet)", name):
        check(covered(name), f"{name}: neither a row nor passed through")
for name in rows:
    if name.startswith("cudnn"):
        check(name in functions, f"{name}: not in cuDNN's headers")
# The numbers in graph.cc are those of the attributes that it means, and it knows all that name tensors.
values = {int(v): n for n, v in re.findall(r"CUDNN_ATTR_((?:OPERATION|TENSOR)_\w+)[^=,]*=\s*(\d+)", headers)}
graph = (top / "hooklib/libraries/extents/graph.cc").read_text()
inputs, outputs = [], []
for cases, answer in re.findall(r"((?:case \d+:.*\s+)+)return ([^;]*);", graph[graph.index("UseOf"):graph.index("bool Streams")]):
    (inputs if answer == "{true, false}" else outputs).extend(int(n) for n in re.findall(r"case (\d+):", cases))
check(len(outputs) > 30 and len(inputs) > 60, "the numbers in graph.cc were not found")
written = (r"_(Y|DX|DW|YDESC|DXDESC|SUMDESC|SQSUMDESC|CDESC|IDXDESC|ODESC|STATSDESC|OUTPUT_DESC|SCALE_DESC|MEAN_DESC|VAR_DESC"
           r"|VARIANCE_DESC|INV_STD_DESC|EQ_\w+|DBN_\w+|DSCALE_DESC|DBIAS_DESC)$")
for number in outputs:
    name = values.get(number, "")
    check(re.search(written, name), f"{number} is {name or 'nothing'}, not an output")
surely = r"_(YDESC|DXDESC|ODESC|STATSDESC|DSCALE_DESC|DBIAS_DESC|UPDATED_\w+|SAVED_\w+|OUTPUT_\w+)$"
for number, name in values.items():  # what is surely an output is known as one
    if re.search(surely, name) and not re.search(r"RESAMPLE_BWD_YDESC|POINTWISE_DYDESC", name):
        check(number in outputs, f"{name} ({number}) writes, and graph.cc does not know it")
for number in inputs:
    name = values.get(number, "")
    check(name and not (re.search(surely, name) and not re.search(r"RESAMPLE_BWD_YDESC", name)), f"{number} is {name or 'nothing'}, not an input")
# Descriptors that are no tensors, and tensors of which nobody says whether they are read or written.
others = r"CONV_DESC|PW_DESCRIPTOR|_(MATMUL|REDUCTION|FWD|BWD|RNG)_DESC$|PEER_STAT_DESCS|FLAGDESC"
for number, name in values.items():
    if name.startswith("OPERATION_") and re.search(r"DESC(S|RIPTOR)?$|_D?[XYW]$", name) and not re.search(others, name):
        check(number in inputs or number in outputs, f"{name} ({number}): graph.cc says nothing of it")

if failures or not (cublas / "cublas_api.h").exists():
    print("\n".join(failures) or f"SKIP: no cuBLAS headers in {cublas}")
    sys.exit(1 if failures else 4)

# --- cuBLAS: signatures by family, coverage of the matrix calls ---
api, lt = text_of(cublas / "cublas_api.h"), text_of(cublas / "cublasLt.h")
signatures = dict(re.findall(r"CUBLASWINAPI\s+(cublas\w+)\s*\(([^)]*)\)", api + lt))


def kinds(parameters):
    """P for a pointer, int, int64_t, long, size."""
    out = []
    for p in parameters.split(","):
        p = " ".join(p.split())
        if "*" in p or "[" in p or re.search(r"(Handle_t|Stream_t|Layout_t|Desc_t)\b", p):
            out.append("P")
        elif p.startswith("long long"):
            out.append("long")
        elif "int64_t" in p:
            out.append("int64_t")
        elif "size_t" in p:
            out.append("size")
        else:
            out.append("int")
    return out


def family_kinds(declaration, integer):
    out = []
    for p in declaration.split(","):
        p = p.strip()
        out.append("P" if "*" in p or p in ("P", "C") else "long" if p == "Long" else integer if p == "I" else
                   "size" if "size_t" in p else p)
    return out


ours = dict(re.findall(r"using (\w+) = int\(([^;]*)\);", re.sub(r"\s+", " ", text_of(top / "hooklib/libraries/blas_abi.h"))))
for name, family, integer, _, _ in blas_rows:
    check(name in signatures, f"{name}: not in cuBLAS' headers")
    if name in signatures:
        check(kinds(signatures[name]) == family_kinds(ours[family], integer), f"{name}: not of family {family}")
for name, family in (("cublasSetWorkspace_v2", "SetWorkspace"), ("cublasSetStream_v2", "SetStream"), ("cublasDestroy_v2", "Destroy"),
                     ("cublasGetPointerMode_v2", "GetPointerMode"), ("cublasLtMatmul", "LtMatmul"), ("cublasLtMatmulAlgoCheck", "LtAlgoCheck"),
                     ("cublasLtMatrixTransform", "LtMatrixTransform"), ("cublasLtMatrixLayoutGetAttribute", "LtGetAttribute"),
                     ("cublasLtMatmulDescGetAttribute", "LtGetAttribute"), ("cublasLtMatrixTransformDescGetAttribute", "LtGetAttribute")):
    check(kinds(signatures[name]) == family_kinds(ours[family], "int"), f"{name}: not of family {family}")
for name in signatures:
    if re.search(r"gemm|gemv|trsm|trmm|symm|hemm|syrk|herk|syr2k|her2k|geam|dgmm", name):
        check(covered(name), f"{name}: neither a row nor passed through")

# --- numbers ---
numbers = {n: int(v, 0) for n, v in re.findall(r"\b((?:CUBLAS|CUBLASLT)_\w+)\s*=\s*(0x[0-9a-fA-F]+|\d+)\b", api + lt)}
for ours_is, theirs in ((0, "CUBLAS_OP_N"), (1, "CUBLAS_OP_T"), (2, "CUBLAS_OP_C"), (0, "CUBLAS_SIDE_LEFT"), (1, "CUBLAS_SIDE_RIGHT"),
                        (0, "CUBLAS_FILL_MODE_LOWER"), (1, "CUBLAS_FILL_MODE_UPPER"), (0, "CUBLAS_DIAG_NON_UNIT"), (1, "CUBLAS_DIAG_UNIT"),
                        (1, "CUBLAS_POINTER_MODE_DEVICE"), (68, "CUBLAS_COMPUTE_32F"), (64, "CUBLAS_COMPUTE_16F"), (70, "CUBLAS_COMPUTE_64F"),
                        (72, "CUBLAS_COMPUTE_32I"), (4, "CUBLASLT_EPILOGUE_BIAS"), (2, "CUBLASLT_EPILOGUE_RELU"), (32, "CUBLASLT_EPILOGUE_GELU"),
                        (256, "CUBLASLT_EPILOGUE_BGRADA"), (512, "CUBLASLT_EPILOGUE_BGRADB"), (3, "CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO"),
                        (4, "CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST"), (2, "CUBLASLT_ORDER_COL32"), (3, "CUBLASLT_ORDER_COL4_4R2_8C"),
                        (4, "CUBLASLT_ORDER_COL32_2R_4R4"), (3, "CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F"),
                        (1, "CUBLASLT_BATCH_MODE_POINTER_ARRAY"), (0, "CUBLASLT_BATCH_MODE_STRIDED")):
    check(numbers.get(theirs) == ours_is, f"{theirs} is {numbers.get(theirs)}, not {ours_is}")
for name, value in numbers.items():  # what is unknown is doubted: these headers hold nothing such
    for prefix, most in (("EPILOGUE", 512), ("ORDER", 4), ("POINTER_MODE", 4), ("BATCH_MODE", 1), ("MATMUL_MATRIX_SCALE", 5)):
        if re.match(f"CUBLASLT_{prefix}_(?!MASK)", name):
            check(value <= most, f"{name} is {value}: lt.h knows nothing beyond {most}")
entries = (top / "hooklib/libraries/lt_entries.cc").read_text()
named = dict(re.findall(r"\b(k\w+) = (\d+)", entries))
for ours_is, theirs in (("kType", "MATRIX_LAYOUT_TYPE"), ("kOrder", "MATRIX_LAYOUT_ORDER"), ("kRows", "MATRIX_LAYOUT_ROWS"),
                        ("kColumns", "MATRIX_LAYOUT_COLS"), ("kLd", "MATRIX_LAYOUT_LD"), ("kBatch", "MATRIX_LAYOUT_BATCH_COUNT"),
                        ("kStride", "MATRIX_LAYOUT_STRIDED_BATCH_OFFSET"), ("kPlane", "MATRIX_LAYOUT_PLANE_OFFSET"),
                        ("kBatchMode", "MATRIX_LAYOUT_BATCH_MODE"), ("kScaleType", "MATMUL_DESC_SCALE_TYPE"),
                        ("kPointerMode", "MATMUL_DESC_POINTER_MODE"), ("kTransA", "MATMUL_DESC_TRANSA"), ("kTransB", "MATMUL_DESC_TRANSB"),
                        ("kEpilogue", "MATMUL_DESC_EPILOGUE"), ("kBias", "MATMUL_DESC_BIAS_POINTER"),
                        ("kBiasStride", "MATMUL_DESC_BIAS_BATCH_STRIDE"), ("kAux", "MATMUL_DESC_EPILOGUE_AUX_POINTER"),
                        ("kAuxLd", "MATMUL_DESC_EPILOGUE_AUX_LD"), ("kAuxStride", "MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE"),
                        ("kAlphaStride", "MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE"), ("kScaleB", "MATMUL_DESC_B_SCALE_POINTER"),
                        ("kScaleC", "MATMUL_DESC_C_SCALE_POINTER"), ("kModeB", "MATMUL_DESC_B_SCALE_MODE"),
                        ("kModeC", "MATMUL_DESC_C_SCALE_MODE"), ("kModeD", "MATMUL_DESC_D_SCALE_MODE"),
                        ("kScaleA", "MATMUL_DESC_A_SCALE_POINTER"), ("kScaleD", "MATMUL_DESC_D_SCALE_POINTER"),
                        ("kAmaxD", "MATMUL_DESC_AMAX_D_POINTER"), ("kAuxType", "MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE"),
                        ("kScaleAux", "MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER"), ("kAmaxAux", "MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER"),
                        ("kBiasType", "MATMUL_DESC_BIAS_DATA_TYPE"), ("kModeA", "MATMUL_DESC_A_SCALE_MODE"),
                        ("kModeAux", "MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE"), ("kScaleOut", "MATMUL_DESC_D_OUT_SCALE_POINTER"),
                        ("kModeOut", "MATMUL_DESC_D_OUT_SCALE_MODE")):
    check(numbers.get("CUBLASLT_" + theirs) == int(named.get(ours_is, -1)),
          f"{ours_is} is {named.get(ours_is)}, CUBLASLT_{theirs} {numbers.get('CUBLASLT_' + theirs)}")

print("\n".join(failures) or f"{len(blas_rows)} rows of cuBLAS, {len(rows)} in all: as in the headers")
sys.exit(1 if failures else 0)
