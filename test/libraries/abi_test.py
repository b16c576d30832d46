"""Whether hooks.def and cudnn_attributes.def miss nothing of the libraries' headers:

    abi_test.py TOP CUDNN-INCLUDE CUBLAS-INCLUDE

Every call that runs kernels is a row of hooks.def, or passed through with a reason. Every operation, attribute and
element type of cuDNN's graphs has a row in cudnn_attributes.def. Signatures and numbers are compared at compile time
(header_numbers_test.cc, cublas_headers_test.cc). Status 4 where cuBLAS' headers are absent (scripts/setup test fetches
them)."""

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
rows = set(re.findall(r"^SLUICE_(?:LIB|BLAS|CUDNN)\((\w+)", table, re.M))
passed = re.findall(r"^SLUICE_LIB_PASS_PREFIX\((\w+),", table, re.M)


def covered(name):
    return name in rows or any(name.startswith(p) for p in passed)


# --- cuDNN: every function that takes a handle, but for getters and settings ---
headers = text_of(*(cudnn / f"cudnn_{part}.h" for part in ("graph", "ops", "cnn", "adv")))
functions = dict(re.findall(r"CUDNNWINAPI\s+(cudnn\w+)\s*\(([^)]*)\)", headers))
for name, parameters in functions.items():
    runs = parameters.split(",")[0].strip().startswith(("cudnnHandle_t", "const cudnnHandle_t"))
    if runs and not re.match(r"cudnn(Get|SetStream|Create$|Destroy$|Query|RNNSet|RNNGet|DropoutGet)", name):
        check(covered(name), f"{name}: neither a row nor passed through")
for name in rows:
    if name.startswith("cudnn"):
        check(name in functions, f"{name}: not in cuDNN's headers")

# --- cudnn_attributes.def ---
listed = text_of(top / "hooklib/libraries/cudnn_attributes.def")
operations = set(re.findall(r"^SLUICE_CUDNN_OPERATION\((\w+),", listed, re.M))
roles = dict(re.findall(r"^SLUICE_CUDNN_ATTRIBUTE\(\w+, (\w+), \d+, (\w+)\)", listed, re.M))
data_types = set(re.findall(r"^SLUICE_CUDNN_DATA_TYPE\((\w+),", listed, re.M))
for kind, theirs, ours in (
    ("operation", re.findall(r"CUDNN_BACKEND_OPERATION_(\w+)_DESCRIPTOR[^=,]*=", headers), operations),
    ("attribute", re.findall(r"CUDNN_ATTR_OPERATION_(\w+)[^=,]*=", headers), set(roles)),
    ("data type", re.findall(r"CUDNN_DATA_(\w+)[^=,]*=\s*\d", headers), data_types),
):
    check(theirs, f"no {kind} was found in cuDNN's headers")
    for name in theirs:
        check(name in ours, f"{kind} {name}: no row in cudnn_attributes.def")
# Where cuDNN's name says the direction, the role agrees. READ_ALL_THE_SAME: inputs that are named like outputs.
OUTPUT = ("kOutput", "kPartialOutput")
BY_NAME = (
    r"_(DX|DW|YDESC|DXDESC|ODESC|STATSDESC|DSCALE_DESC|DBIAS_DESC|UPDATED_\w+|SAVED_\w+|OUTPUT_\w+|DBN_\w+"
    r"|EQ_\w+)$"
)
OUTPUT_TOO = r"_(Y|CDESC|SUMDESC|SQSUMDESC|IDXDESC|SCALE_DESC)$"
READ_ALL_THE_SAME = r"RESAMPLE_BWD_YDESC|POINTWISE_DYDESC"
NO_TENSOR = r"CONV_DESC|PW_DESCRIPTOR|(MATMUL|REDUCTION|FWD|BWD|RNG)_DESC$"
for name, role in roles.items():
    if re.search(BY_NAME, name) and not re.search(READ_ALL_THE_SAME, name):
        check(role in OUTPUT, f"{name} is written by its name, and {role} in cudnn_attributes.def")
    elif role in OUTPUT:
        check(re.search(OUTPUT_TOO, name), f"{name} is an output only in cudnn_attributes.def")
    if re.search(r"DESC(S|RIPTOR)?$|_D?[XYW]$", name) and not re.search(NO_TENSOR, name):
        check(
            role not in ("kSetting", "kBeta", "kPhase"), f"{name} names a tensor, and is {role} in cudnn_attributes.def"
        )

if failures or not (cublas / "cublas_api.h").exists():
    print("\n".join(failures) or f"SKIP: no cuBLAS headers in {cublas}")
    sys.exit(1 if failures else 4)

# --- cuBLAS: the matrix calls ---
api, lt = text_of(cublas / "cublas_api.h"), text_of(cublas / "cublasLt.h")
for name in re.findall(r"CUBLASWINAPI\s+(cublas\w+)\s*\(", api + lt):
    if re.search(r"gemm|gemv|trsm|trmm|symm|hemm|syrk|herk|syr2k|her2k|geam|dgmm", name):
        check(covered(name), f"{name}: neither a row nor passed through")
# Values beyond those that extents/lt.h knows make a set incomplete. These headers must hold none.
numbers = {n: int(v, 0) for n, v in re.findall(r"\b(CUBLASLT_\w+)\s*=\s*(0x[0-9a-fA-F]+|\d+)\b", lt)}
check(len(numbers) > 100, "the numbers of cublasLt.h were not found")
for name, value in numbers.items():
    for prefix, largest in (
        ("EPILOGUE", 512),
        ("ORDER", 4),
        ("POINTER_MODE", 4),
        ("BATCH_MODE", 1),
        ("MATMUL_MATRIX_SCALE", 5),
    ):
        if re.match(f"CUBLASLT_{prefix}_(?!MASK)", name):
            check(value <= largest, f"{name} is {value}: lt.h knows nothing beyond {largest}")

print("\n".join(failures) or f"{len(rows)} rows: nothing of the headers is missing")
sys.exit(1 if failures else 0)
