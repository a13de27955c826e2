"""Convert folders of quantized weights (fp8, mxfp4, int8, GPTQ, AWQ) into plain ones, without their quantizers."""
