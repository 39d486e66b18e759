"""Frames of RPC over MQTT for Hypothesis."""

from hypothesis import strategies as st

from polywire.protocols.mqttrpc.frames import ErrorData, Request, Response, TimeoutUnit

uint32 = st.integers(0, 2**32 - 1)
correlation_ids = st.integers(0, 2**64 - 1)
texts = st.text(max_size=20)
values = st.none() | st.binary(max_size=200)

error_data = st.builds(ErrorData, uint32, texts, texts, uint32)
requests = st.builds(Request, correlation_ids, texts, values, st.booleans(), uint32, st.sampled_from(TimeoutUnit))
responses = st.builds(Response, correlation_ids, texts, values, st.none() | error_data, st.booleans())
frames = st.one_of(requests, responses)
