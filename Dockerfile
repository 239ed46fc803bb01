# hrm_train on Debian 12:
#   docker build -t hrm_train .                                  with CUDA, for H100 and H200 and portable kernels
#   docker build -t hrm_train --build-arg HRM_CUDA=OFF .         for CPUs
#   docker run --gpus all -v $PWD/runs:/hrm_train/runs hrm_train train --config configs/puzzle/hrm_sudoku17.json
# The first stage builds; the second holds only what `cmake --install` makes.
FROM debian:12-slim AS build
ARG HRM_CUDA=ON
ARG HRM_CUDA_ARCHS="80;90a;120"
ENV HRM_CUDA=${HRM_CUDA} HRM_CUDA_ARCHS=${HRM_CUDA_ARCHS}
WORKDIR /hrm_train
RUN apt-get update && apt-get install -y --no-install-recommends git ca-certificates
COPY . .
RUN scripts/setup && scripts/build hrm_train && cmake --install build --prefix /opt/hrm_train

FROM debian:12-slim
COPY --from=build /opt/hrm_train /opt/hrm_train
ENV PATH=/opt/hrm_train/bin:$PATH
# Recipes name their data relative to this folder.
WORKDIR /hrm_train
RUN ln -s /opt/hrm_train/share/hrm_train/configs /opt/hrm_train/share/hrm_train/data \
    /opt/hrm_train/share/hrm_train/examples /opt/hrm_train/share/hrm_train/checkpoints .
ENTRYPOINT ["hrm_train"]
CMD ["--help"]
