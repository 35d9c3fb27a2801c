"""Limits of the validity rules; `codes.py` describes them in words. Pairs are (informative, invalid).

Limits with a published source name it. The others are this project's choice, with the reason.
"""

from __future__ import annotations

# Load generator. Tene, "How NOT to Measure Latency": a client that sends late and starts its clock late skips exactly the
# slow moments ("coordinated omission"). Lag matters relative to the measured time, so the limit grows with TTFT.
SEND_LAG_S = (0.005, 0.025)
SEND_LAG_OF_TTFT = (0.02, 0.10)
OFFLINE_LAG_OF_WINDOW = (
    0.01,
    0.05,
)  # offline sends everything at the start (MLPerf: one query); sending slowly is a different load
RATE_SHORTFALL = (0.01, 0.05)  # the client is verified to hold 1%
DRAWN_RATE_MIN = 200  # requests; with fewer, the edges are several percent
DRAWN_RATE = 0.05  # near saturation latency grows as 1/(1 - load): 5% more rate can mean far more latency
CONCURRENCY_OFF = (0.05, 0.20)
CEILING_SHARE = (0.50, 0.80)  # the client's accuracy is verified up to half its ceiling
CLIENT_CORE_SHARE = (0.70, 0.90)  # a busier process timestamps late: arrivals wait in the socket
EARLY_S = 0.001  # clocks of processes on one host differ by less

# Steady state.
LITTLES_LAW = (0.05, 0.20)  # Little 1961; measured over a finite window: Denning and Buzen 1978, "flow balance"
OUTSIDE_SERVER = 0.20  # network time is user time too, and there is no general limit for it
BACKLOG_GROWTH = 0.05
BACKLOG_SIGMAS = 3.0
BACKLOG_MIN_ARRIVALS = 20
WARMUP_BIAS = 0.05  # MSER cut, White 1997; a cut in the second half means no steady state
WARMUP_MIN_VALUES = 20
WARMUP_HALVES = 0.10

# Samples.
MIN_CYCLES = 3  # with 2 the t factor is 12.7, with 3 it is 4.3

# Answers.
ERROR_SHARE = (0.0, 0.01)  # failures end early and are excluded from latencies: above 1% they can make up the whole p99
OUTPUT_LENGTH = (0.01, 0.10)  # MLPerf Inference, LLM tasks: tokens per sample within 90-110% of the reference
SHORTER_PROMPTS = (0.0, 0.01)
CACHED_SHARE = (0.02, 0.50)
TOKENS_PER_EVENT = 1.5  # holding tokens back for whole characters stays below
LOGPROB_DISTANCE = (0.1, 0.5)  # nats: precision explains 0.1, not 0.5
PARITY_LENGTH = 0.10  # as OUTPUT_LENGTH
DIVERGENCE = (0.5, 0.95)

# Machine.
OTHERS_BUSY = (0.05, 0.15)
IDLE_GPU_BUSY = (0.02, 0.10)
OTHERS_IN_FLIGHT = (0.05, 0.15)  # as OTHERS_BUSY
COUNTED_LATE_S = 0.005  # a busy server notices the end of a request slightly after its client
TEMPERATURE_DRIFT_C = 5.0  # leakage power grows with temperature, and boost clocks fall in steps of a few degrees
CLOCK_DRIFT = 0.03
THERMAL_MIN_SAMPLES = 8
THROTTLED_SHARE = (0.0, 0.01)

# Energy. NVML's counter updates every 20-100 ms and its power is a mean over up to 1 s (Yang et al., SC24, "Accurate and
# Convenient Energy Measurements for GPUs"): one second at the edges is 10% of 10 s and 3% of 30 s. RAPL updates every millisecond.
GPU_WINDOW_S = (30.0, 10.0)
CPU_WINDOW_S = (3.0, 1.0)
ENERGY_EDGES = (0.02, 0.05)
ENERGY_APART = (0.05, 0.10)
